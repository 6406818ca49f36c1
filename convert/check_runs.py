"""Whether pearl could run what a conversion would write, found out from the planned headers alone: hours of converting
should not end in a file that is refused.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from convert.gguf_layout import FileLayout
from models.config import ModelConfig
from models.errors import PearlError
from models.gguf import GGUFModel
from models.gguf_header import read_header


class _HeadersOnly:
    """`models.gguf_files.Files` of which nobody reads a byte."""

    closed = True

    def read(self, file_index: int, offset: int, out: memoryview) -> int:
        return 0

    def close(self) -> None:
        """Nothing is open."""


def check_runs(layouts: list[FileLayout], source: Path) -> PearlError | None:
    """What a run of the planned files would raise because of their metadata, told of `source`; None where nothing."""
    headers = [
        read_header(partial(_head, layout.header), layout.file_bytes, source, index)
        for index, layout in enumerate(layouts)
    ]
    try:
        ModelConfig.from_gguf(GGUFModel([source] * len(layouts), _HeadersOnly(), headers))
    except PearlError as error:
        return error
    return None


def _head(header: bytes, n_bytes: int, offset: int) -> bytes:
    """What a file with this head gives to a reader that reads ahead, zeros where weights will be."""
    return header[offset : offset + n_bytes].ljust(n_bytes, b"\0")
