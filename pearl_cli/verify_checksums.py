"""Check the bytes of a model against the checksums that `pearl convert` stored: `pearl info --verify`.

Each file of a set carries `pearl.tensor_checksums`: the crc32 of each of its tensors, u32, in the order of its header.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels.cpu.crc32 import crc32
from models.errors import FileError, GGUFError
from models.gguf import GGUFModel
from models.gguf_cursor import show

CHECKSUMS_KEY = "pearl.tensor_checksums"
_PIECE_BYTES = 8 << 20


def verify_checksums(gguf: GGUFModel, progress: Callable[[int, int], None]) -> int:
    """Read every tensor and compare; returns how many were checked. Takes 8 MiB of memory; `progress(done, total)` in
    bytes.

    Raises FileError naming each damaged tensor, or where a file has no checksums, GGUFError where they do not fit the
    file.
    """
    expected = [_stored(gguf, index) for index in range(len(gguf.paths))]
    total, done, damaged = sum(info.n_bytes for info in gguf.tensors.values()), 0, []
    piece = np.empty(_PIECE_BYTES, np.uint8)
    for header, checksums in zip(gguf.headers, expected, strict=True):
        for info, checksum in zip(header.tensors, checksums.tolist(), strict=True):
            crc = 0
            for start in range(0, info.n_bytes, _PIECE_BYTES):
                part = piece[: min(_PIECE_BYTES, info.n_bytes - start)]
                gguf.read_bytes(info.file_index, info.offset + start, part, f"tensor {show(info.name)}")
                crc = crc32(part, crc)
                done += part.size
                progress(done, total)
            if crc != checksum:
                damaged.append(f"{gguf.paths[info.file_index].name}: {info.name}")
    if damaged:
        more = f" and {len(damaged) - 10} more" if len(damaged) > 10 else ""
        raise FileError(
            f"{gguf.paths[0]}: {len(damaged)} of {len(gguf.tensors)} tensors differ from their checksums "
            f"({', '.join(damaged[:10])}{more}); copy or convert the model again"
        )
    return len(gguf.tensors)


def _stored(gguf: GGUFModel, file_index: int) -> np.ndarray:
    header, path = gguf.headers[file_index], gguf.paths[file_index]
    stored = header.metadata.get(CHECKSUMS_KEY)
    if stored is None:
        raise FileError(f"{path}: holds no checksums ({CHECKSUMS_KEY}); only files written by pearl convert have them")
    if not isinstance(stored, np.ndarray) or stored.dtype != np.uint32 or len(stored) != len(header.tensors):
        raise GGUFError(f"{path}: {CHECKSUMS_KEY} must hold {len(header.tensors)} u32 numbers, one a tensor")
    return stored
