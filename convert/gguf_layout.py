"""Where everything lies in a GGUF file that is about to be written: header bytes, tensor offsets, total size.

Pure arithmetic: nothing here opens a file. Layout of a GGUF file, version 3, little endian:
    "GGUF" | u32 version | u64 tensor count | u64 key count | keys | tensor infos | padding | tensor data
    tensor info: string name | u32 n_dims | u64 dims[] | u32 type | u64 offset from the start of the data
Each tensor starts at the next multiple of the alignment after the one before it, as llama.cpp demands.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGUF_MAGIC, GGUF_VERSION

from convert.gguf_metadata import Metadata, string_bytes
from kernels.quant_types import QuantType, row_bytes

CHECKSUMS_KEY = "pearl.tensor_checksums"
ALIGNMENT_KEY = "general.alignment"


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One tensor to be written; `shape` in ggml order (shape[0] is the row length)."""

    name: str
    shape: tuple[int, ...]
    quant_type: QuantType

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.quant_type, self.shape[0])

    @property
    def n_bytes(self) -> int:
        return self.n_rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class FileLayout:
    """One output file. `offsets` are absolute; `checksums_at` is where the crc32 array's numbers stand in the
    header.
    """

    path: Path
    tensors: tuple[OutputTensor, ...]
    header: bytes
    offsets: tuple[int, ...]
    file_bytes: int
    checksums_at: int


def align_up(n: int, alignment: int) -> int:
    return (n + alignment - 1) // alignment * alignment


def lay_out(path: Path, metadata: Metadata, tensors: list[OutputTensor], alignment: int) -> FileLayout:
    """Lay out one file. The checksum array is the last key and holds zeros until the data is known (its size is
    fixed).
    """
    metadata = metadata.copy()
    metadata.u32(ALIGNMENT_KEY, alignment)
    metadata.remove(CHECKSUMS_KEY)
    metadata.array(CHECKSUMS_KEY, np.zeros(len(tensors), dtype=np.uint32))
    start = struct.pack("<IIQQ", GGUF_MAGIC, GGUF_VERSION, len(tensors), len(metadata)) + metadata.encode()
    infos = bytearray()
    relative, at = [], 0
    for tensor in tensors:
        relative.append(at)
        infos += string_bytes(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        infos += struct.pack("<IQ", tensor.quant_type, at)
        at = align_up(at + tensor.n_bytes, alignment)
    header_bytes = align_up(len(start) + len(infos), alignment)
    header = (start + bytes(infos)).ljust(header_bytes, b"\x00")
    return FileLayout(
        path=path,
        tensors=tuple(tensors),
        header=header,
        offsets=tuple(header_bytes + offset for offset in relative),
        file_bytes=header_bytes + at,
        checksums_at=len(start) - 4 * len(tensors),
    )
