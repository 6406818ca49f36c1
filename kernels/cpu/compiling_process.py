"""A second process that compiles into numba's cache what the first token does not need, while this one compiles the
rest.

numba compiles one function at a time in a process. What the other process has not finished, this one compiles itself:
nothing depends on it but the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from kernels.quant_types import QuantType

_WORK = "from kernels.cpu.warmup import compile_later_steps; compile_later_steps({})"


class CompilingProcess:
    """Running from the constructor on. Raises OSError where the system starts no process."""

    def __init__(self, quant_types: Collection[QuantType]) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORK.format(sorted(map(int, quant_types)))],
            cwd=root,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
