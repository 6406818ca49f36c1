"""Where slots are filled from: a model's files on the disk, or its store in host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from models.gguf import GGUFModel
from pearl_cli.residency.disk_reader import DiskReader
from pearl_cli.residency.host_reader import HostReader
from pearl_cli.residency.throttle import Throttle


class ChunkReader(Protocol):
    def read(self, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        """Fill `out` from `offset`; raises ReadFailure where `needed_bytes` are not to be had."""
        ...

    def read_scattered(self, file_index: int, offset: int, outs: Sequence[memoryview], needed_bytes: int) -> None:
        """The same into several pieces of memory that follow each other in the file."""
        ...

    def close(self) -> None: ...


def open_reader(
    gguf: GGUFModel, bytes_per_s: float | None, notify: Callable[[str], None] | None
) -> ChunkReader:
    """The reader of `gguf`'s experts; `bytes_per_s` None for as fast as it goes. Raises FileError."""
    throttle = Throttle(bytes_per_s) if bytes_per_s is not None else None
    if gguf.memory is not None:
        return HostReader(gguf.memory, throttle)
    return DiskReader(gguf.paths, throttle, notify)
