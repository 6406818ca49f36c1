"""Copies of expert chunks from files that lie in host memory: `DiskReader` for a store in RAM."""

from __future__ import annotations

from collections.abc import Sequence

from models.gguf_files import MemoryFiles
from pearl_cli.residency.throttle import Throttle


class HostReader:
    """`read` may be called from several threads at once. Slots that are the store itself offer an empty `out`."""

    def __init__(self, files: MemoryFiles, throttle: Throttle | None = None) -> None:
        self._files = files
        self._throttle = throttle

    def read(self, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        """Fill `out` from `offset`, as far as the file goes; `needed_bytes` are there, because the store made them."""
        if not out:
            return
        done_at = self._throttle.reserve(len(out)) if self._throttle is not None else 0.0
        self._files.read(file_index, offset, out)
        if self._throttle is not None:
            self._throttle.wait_until(done_at)

    def read_scattered(self, file_index: int, offset: int, outs: Sequence[memoryview], needed_bytes: int) -> None:
        """As `read`, into several pieces of memory that follow each other in the file."""
        for out in outs:
            self.read(file_index, offset, out, min(len(out), needed_bytes))
            offset, needed_bytes = offset + len(out), needed_bytes - len(out)

    def close(self) -> None:
        """Nothing of its own to close."""
