"""Where the bytes of a model's files are: open files on a disk, or files that exist in host memory alone (the converter
makes those).

Only bytes at positions; what they mean is `models.gguf`'s.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np

# A single preadv returns at most about 2 GiB on Linux.
_MAX_READ_BYTES = 1 << 30


class Files(Protocol):
    """The files of one model, by index."""

    @property
    def closed(self) -> bool: ...
    def read(self, file_index: int, offset: int, out: memoryview) -> int:
        """Fill the front of `out` from `offset`; returns the bytes that came, 0 at the end. Raises OSError."""
        ...

    def close(self) -> None:
        """Harmless when called twice."""
        ...


class DiskFiles:
    """`Files` by positioned reads from descriptors, which it owns."""

    def __init__(self, fds: list[int]) -> None:
        self._fds = fds
        self._finalizer = weakref.finalize(self, close_all, fds)

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def read(self, file_index: int, offset: int, out: memoryview) -> int:
        return os.preadv(self._fds[file_index], [out[:_MAX_READ_BYTES]], offset)

    def close(self) -> None:
        self._finalizer()


class MemoryFiles(ABC):
    """`Files` that exist in host memory alone, whose tensors are made when they are first asked for, or by `fill`."""

    closed: bool

    @property
    @abstractmethod
    def region(self) -> np.ndarray:
        """All of that memory, uint8 in one piece, page-aligned."""

    @abstractmethod
    def read(self, file_index: int, offset: int, out: memoryview) -> int:
        """As `Files.read`."""

    @abstractmethod
    def resident(self, file_index: int, offset: int, n_bytes: int) -> np.ndarray:
        """The bytes themselves, uint8, where they lie; not to be written, there for as long as the array lives."""

    @abstractmethod
    def address(self, file_index: int, offset: int) -> int:
        """Where a byte of a file is in memory."""

    @abstractmethod
    def missing_bytes(self, wanted: Callable[[str], bool]) -> int:
        """What `fill` would add to the process for good, in whole pages."""

    @abstractmethod
    def filling_bytes(self, threads: int) -> int:
        """What `fill` takes at most beside that while it runs."""

    @abstractmethod
    def fill(
        self, wanted: Callable[[str], bool], threads: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Make every tensor whose name `wanted` accepts. `progress(bytes done, bytes in all)` is called from this
        thread.
        """

    @abstractmethod
    def close(self) -> None:
        """Harmless when called twice."""


def close_all(fds: list[int]) -> None:
    """Close and forget every descriptor of `fds`."""
    while fds:
        os.close(fds.pop())
