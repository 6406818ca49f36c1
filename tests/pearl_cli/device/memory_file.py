"""A file as `MemoryFiles`: its bytes in one region, of which a part may count as not made yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from models.gguf_files import MemoryFiles
from pearl_cli.residency.arena import map_region

PAGE = 4096


class MemoryFile(MemoryFiles):
    """missing: bytes that `missing_bytes` tells of everything, and unwanted: those of them that no run asks for."""

    def __init__(self, path: Path, missing: int = 0, unwanted: int = 0) -> None:
        raw = np.fromfile(path, np.uint8)
        self._n_bytes = raw.size
        self._region = map_region(-(-raw.size // PAGE) * PAGE)
        self._region[: raw.size] = raw
        self._missing, self._unwanted = missing, unwanted
        self.closed = False

    @property
    def region(self) -> np.ndarray:
        return self._region

    def read(self, file_index: int, offset: int, out: memoryview) -> int:
        n_bytes = max(0, min(len(out), self._n_bytes - offset))
        out[:n_bytes] = self._region[offset : offset + n_bytes].data
        return n_bytes

    def resident(self, file_index: int, offset: int, n_bytes: int) -> np.ndarray:
        return self._region[offset : offset + n_bytes]

    def address(self, file_index: int, offset: int) -> int:
        return int(self._region.ctypes.data) + offset

    def missing_bytes(self, wanted: Callable[[str], bool]) -> int:
        return self._missing if wanted("blk.99.unused") else self._missing - self._unwanted

    def filling_bytes(self, threads: int) -> int:
        return 0

    def fill(
        self, wanted: Callable[[str], bool], threads: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """All of it is here."""

    def close(self) -> None:
        self.closed = True
