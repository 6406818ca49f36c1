"""Kills conversions at random points of their writing and lets them go on; run as a program by `test_kill_points`.

usage: kill_points.py SOURCE DIRECTORY N_KILLS SEED

Each conversion runs in a child process that dies, without cleaning up, once a random number of bytes has gone to the
disk (in the middle of a write if that is where it falls); renaming, deleting, cutting and syncing count as some bytes
each, so that deaths fall between them too. Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convert.pipeline import ConvertOptions, convert
from models.errors import PearlError
from models.gguf import GGUFModel
from tests.convert.checkpoints import contents

OPTIONS = ConvertOptions(quant="q8_0", with_vocab=False, threads=1, shard_bytes=3 << 14)
STEP_BYTES = 300  # what a step without data counts as
DEAD = 9
_STEPS = ("replace", "unlink", "fsync", "ftruncate", "open")


class Budget:
    """Counts what goes to the disk; with a `limit` the process dies there."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.spent = 0
        self._write = os.pwrite
        self._patch("pwrite", self.write)
        for name in _STEPS:
            self._patch(name, self._counted(getattr(os, name)))

    def _patch(self, name: str, function: Callable[..., Any]) -> None:
        setattr(os, name, function)

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **keywords: Any) -> Any:
            self._spend(STEP_BYTES)
            return real(*arguments, **keywords)

        return step

    def _spend(self, n: int) -> None:
        if self.limit is not None and self.spent + n > self.limit:
            os._exit(DEAD)
        self.spent += n

    def write(self, descriptor: int, data: Any, at: int) -> int:
        left = len(data) if self.limit is None else self.limit - self.spent
        if left < len(data):
            self._write(descriptor, bytes(data)[:left], at)
            os._exit(DEAD)
        self.spent += len(data)
        return self._write(descriptor, data, at)


def in_child(source: Path, out: Path, limit: int | None) -> int:
    """Exit status of a conversion that may die."""
    child = os.fork()
    if child == 0:
        Budget(limit)
        convert(source, out, OPTIONS)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def opens(out: Path) -> bool:
    """Whether anything in `out` opens as a model."""
    for path in sorted(out.glob("*")) if out.exists() else []:
        try:
            GGUFModel.open(path).close()
        except PearlError:
            continue
        return True
    return False


def main(source: Path, directory: Path, n_kills: int, seed: int) -> dict[str, int]:
    counting = Budget(None)
    first = convert(source, directory / "whole", OPTIONS)
    total = counting.spent
    whole = contents(first.parent)
    found = {"killed": 0, "opened_half_done": 0, "resumes_that_differ": 0, "total": total, "files": len(whole)}
    rng = random.Random(seed)
    for number in range(n_kills):
        out = directory / "stopped"
        shutil.rmtree(out, ignore_errors=True)
        # Every third run is killed twice, the second time while it goes on.
        for limit in [rng.randrange(total) for _ in range(1 + (number % 3 == 0))]:
            if in_child(source, out, limit) == DEAD:
                found["killed"] += 1
                left = list(out.glob("*.partial")) if out.exists() else []
                found["opened_half_done"] += bool(left) and opens(out) and not _is_whole(out, whole)
        status = in_child(source, out, None)
        found["resumes_that_differ"] += status != 0 or contents(out) != whole
    return found


def _is_whole(out: Path, whole: dict[str, bytes]) -> bool:
    """All files are there with their names: only the journal was still to be taken away."""
    return all((out / name).exists() and (out / name).read_bytes() == data for name, data in whole.items())


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
