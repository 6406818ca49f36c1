"""Every eviction policy with every predictor, at changing budgets and numbers of reader threads, under seeded delays
and failed reads together: the bits of the all-resident model, reply after reply.

Then what a disk really does in the middle of a reply: an I/O error, a file cut short, a file deleted.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from models.errors import ReadFailure
from models.gguf import GGUFModel
from pearl_cli.engine import Engine
from pearl_cli.open_engine import open_engine
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.predict.fingerprint import model_fingerprint
from pearl_cli.predict.predictor_file import save_predictor
from pearl_cli.residency.disk_reader import DiskReader
from pearl_cli.residency.eviction import POLICY_NAMES
from pearl_cli.sizes import Size
from tests.pearl_cli.predict.forecast_files import random_predictor
from tests.tiny_gguf import tiny_moe

LAYERS = 3
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 89]
FORCED = [7, 8, 200, 7, 31, 8, 90, 12, 200, 31]
TRAINED = ("mlp", "horizon-mlp", "trajectory")
PREDICTORS = ("none", "auto", "next-gate", "token-table", "ema", *TRAINED)
MACHINES = list(itertools.product((20, 45, 70), (1, 2, 4)))  # percent of the experts, reader threads


class Faults:
    """Stands before `DiskReader`'s reads: each takes a seeded random time, and one in `one_in` fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int, one_in: int, longest_s: float = 0.0005) -> None:
        self.failed = 0
        self._rng = np.random.default_rng(seed)
        self._one_in, self._longest_s = one_in, longest_s
        self._lock = threading.Lock()
        for name in ("read", "read_scattered"):
            monkeypatch.setattr(DiskReader, name, self._before(getattr(DiskReader, name)))

    def _before(self, plain: Callable[..., None]) -> Callable[..., None]:
        def read(reader: DiskReader, file_index: int, offset: int, *rest: object) -> None:
            with self._lock:
                before, after = self._rng.random(2) * self._longest_s
                fails = self._one_in > 0 and self._rng.integers(self._one_in) == 0
                self.failed += fails
            time.sleep(before)
            if fails:
                raise ReadFailure(f"reading at byte {offset} failed: Input/output error")
            plain(reader, file_index, offset, *rest)
            time.sleep(after)

        return read


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a trace of its shape and one predictor of each trained kind, with random weights."""
    folder = tmp_path_factory.mktemp("model")
    path = tiny_moe("qwen3moe", num_layers=LAYERS).write(folder / "tiny.gguf")
    with GGUFModel.open(path) as gguf:
        shape = {
            "num_experts": gguf.metadata["qwen3moe.expert_count"],
            "num_experts_per_tok": gguf.metadata["qwen3moe.expert_used_count"],
            "hidden_size": gguf.metadata["qwen3moe.embedding_length"],
        }
        for kind in TRAINED:
            card = {"fingerprint": model_fingerprint(gguf), "layers": tuple(range(LAYERS)), **shape}
            save_predictor(folder / f"{kind}.gguf", *random_predictor(kind, **card))
    rows = [f"0,1,0,{layer},{rank},{rank + layer},0.5,0,100" for layer in range(LAYERS) for rank in range(2)]
    head = f"# model=tiny arch=qwen3moe n_layer={LAYERS} n_expert={shape['num_experts']} n_expert_used=2"
    names = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"
    sizes = [f"# layer={layer} expert_bytes=100 dense_bytes=1" for layer in range(LAYERS)]
    (folder / "usage.csv").write_text("\n".join(["# route_trace v1", head, *sizes, names, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def resident(model: Path) -> list[np.ndarray]:
    """Logits after the prompt and after each forced token, twice: with everything in memory."""
    with opened(model, "lru", "none", 100, 1) as engine:
        return [*reply(engine.engine), *reply(engine.engine)]


def opened(model: Path, evict: str, predictor: str, percent: int, io_threads: int) -> OpenedEngine:
    file = model.with_name(f"{predictor}.gguf")
    return open_engine(
        model,
        RunOptions(
            threads=1, ctx_size=64, ubatch_size=4, budget=Size(percent=percent), evict=evict, io_threads=io_threads,
            predictor=str(file) if predictor in TRAINED else predictor,
            usage=model.with_name("usage.csv") if evict == "static" else None,
        ),
    )  # fmt: skip


def reply(engine: Engine) -> Iterator[np.ndarray]:
    """A prompt and forced tokens from an empty context; what fails is asked for again until it is there."""
    engine.reset()
    yield until_it_reads(lambda: engine.prefill(PROMPT))
    for token in FORCED:
        yield until_it_reads(lambda token=token: engine.decode_step(token))  # type: ignore[misc]


def check_reply(engine: Engine, resident: Sequence[np.ndarray]) -> None:
    """A whole reply, held against the first of the resident run."""
    for mine, right in zip(reply(engine), resident[: 1 + len(FORCED)], strict=True):
        np.testing.assert_array_equal(mine, right)


def decode(engine: Engine) -> None:
    for token in FORCED:
        engine.decode_step(token)


def until_it_reads(step: Callable[[], np.ndarray]) -> np.ndarray:
    for _ in range(200):
        try:
            return step()
        except ReadFailure:
            continue
    raise AssertionError("two hundred tries and every one failed")


def pairs() -> Iterator[tuple[str, str, int, int]]:
    """(evict, predictor, percent, reader threads): all pairs that there are, each on another machine."""
    machines = itertools.cycle(MACHINES)
    for evict, predictor in itertools.product(POLICY_NAMES, PREDICTORS):
        if (evict, predictor) != ("pearl", "none"):
            yield evict, predictor, *next(machines)


@pytest.mark.parametrize("evict", POLICY_NAMES)
def test_no_policy_predictor_budget_threads_delay_or_failure_changes_a_bit(
    model: Path, resident: Sequence[np.ndarray], evict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(monkeypatch, seed=POLICY_NAMES.index(evict), one_in=60)
    for policy, predictor, percent, io_threads in pairs():
        if policy != evict:
            continue
        with opened(model, evict, predictor, percent, io_threads) as engine:
            got = [*reply(engine.engine), *reply(engine.engine)]
            assert engine.controller.totals.misses > 0
        for index, (mine, right) in enumerate(zip(got, resident, strict=True)):
            np.testing.assert_array_equal(mine, right, err_msg=f"{predictor}, {percent} %, {io_threads}: step {index}")
    assert faults.failed > 0


def break_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Every read from now on is an I/O error; call what this returns to mend the disk."""
    plain = os.preadv

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fails)
    return lambda: monkeypatch.setattr(os, "preadv", plain)


@pytest.mark.parametrize("predictor", ["none", "next-gate", "token-table"])
def test_an_io_error_in_a_reply_ends_it_and_the_next_one_is_right(
    model: Path, resident: Sequence[np.ndarray], predictor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(model, "lru", predictor, 20, 2) as engine:
        np.testing.assert_array_equal(engine.engine.prefill(PROMPT), resident[0])
        mend = break_disk(monkeypatch)
        with pytest.raises(ReadFailure, match=r"tiny\.gguf: reading at byte \d+ failed: Input/output error"):
            decode(engine.engine)
        mend()
        check_reply(engine.engine, resident)


def test_a_file_cut_short_in_a_reply_is_named_and_another_reply_is_right_once_it_is_whole(
    model: Path, resident: Sequence[np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    whole = model.read_bytes()
    path.write_bytes(whole)
    with opened(path, "lfru", "none", 20, 2) as engine:
        np.testing.assert_array_equal(engine.engine.prefill(PROMPT), resident[0])
        os.truncate(path, 4096)
        with pytest.raises(ReadFailure, match=r"tiny\.gguf: the file ends at byte \d+.*changed or cut short"):
            decode(engine.engine)
        path.write_bytes(whole)
        check_reply(engine.engine, resident)


def test_a_file_deleted_in_a_reply_is_read_to_the_end(
    model: Path, resident: Sequence[np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(model.read_bytes())
    with opened(path, "lru", "next-gate", 20, 2) as engine:
        for index, (mine, right) in enumerate(zip(reply(engine.engine), resident, strict=False)):
            np.testing.assert_array_equal(mine, right)
            if index == 2:
                path.unlink()
        assert engine.controller.totals.misses > 0
