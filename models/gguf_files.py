"""Where the bytes of a model's files are: open files on a disk here, or files that exist in memory alone.

Only bytes at positions; what they mean is `models.gguf`'s.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

import numpy as np

# A single preadv returns at most about 2 GiB on Linux.
_MAX_READ_BYTES = 1 << 30


class Files(Protocol):
    """The files of one model, by index."""

    @property
    def closed(self) -> bool: ...
    @property
    def in_memory(self) -> bool:
        """Whether `resident` gives arrays."""
        ...

    def read(self, file_index: int, offset: int, out: memoryview) -> int:
        """Fill the front of `out` from `offset`; returns the bytes that came, 0 at the end. Raises OSError."""
        ...

    def resident(self, file_index: int, offset: int, n_bytes: int) -> np.ndarray | None:
        """The bytes themselves, uint8, where they lie in host memory for as long as the array lives; else None."""
        ...

    def close(self) -> None:
        """Harmless when called twice."""
        ...


class DiskFiles:
    """`Files` by positioned reads from descriptors, which it owns."""

    in_memory = False

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds
        self._finalizer = weakref.finalize(self, close_all, fds)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def read(self, file_index: int, offset: int, out: memoryview) -> int:
        return os.preadv(self._fds[file_index], [out[:_MAX_READ_BYTES]], offset)

    def resident(self, file_index: int, offset: int, n_bytes: int) -> None:
        return None

    def close(self) -> None:
        self._finalizer()


def close_all(fds: list[int]) -> None:
    """Close and forget every descriptor of `fds`."""
    while fds:
        os.close(fds.pop())
