"""One file's GGUF header, parsed and checked: metadata, and where each tensor lies. Split sets are put together in
`models.gguf_split`.

Layout (all little endian): "GGUF", u32 version, u64 n_tensors, u64 n_kv; n_kv times (string key, u32 type, value);
n_tensors times (string name, u32 n_dims, u64 dims[n_dims], u32 ggml type, u64 offset); padding to `general.alignment`;
tensor data, offsets relative to its start. A string is u64 length and bytes.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.quant_types import QuantType, block_bytes, block_size
from models.errors import FileError, UnsupportedQuantType
from models.gguf_cursor import Cursor, Read, show
from models.gguf_sniff import describe_other_file, missing_file
from models.gguf_values import Kind, decode_text, read_value

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
_MIN_KV_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
_ENTRY = {n: struct.Struct(f"<{n}QIQ") for n in range(1, MAX_DIMS + 1)}
_BLOCKS = {int(t): (t, block_size(t), block_bytes(t)) for t in QuantType}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is in ggml order: shape[0] is the row length; `offset` counts from the start of
    its file.
    """

    name: str
    shape: tuple[int, ...]
    quant_type: QuantType
    file_index: int
    offset: int
    n_bytes: int

    @property
    def n_cols(self) -> int:
        return self.shape[0]

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Header:
    """What one file declares. `data_end` is the end of its last tensor (or of the header); `n_reads`, `n_fetched` say
    what opening cost.
    """

    version: int
    alignment: int
    metadata: dict[str, Any]
    kinds: dict[str, Kind]
    tensors: list[TensorInfo]
    data_end: int
    file_bytes: int
    n_reads: int
    n_fetched: int


def open_regular(path: Path) -> tuple[int, int]:
    """(file descriptor, bytes) of `path`. Raises FileError if it is missing, a folder, not a regular file or not
    readable.
    """
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        raise FileError(f"{path}: cannot be opened: {error.strerror}") from None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return fd, status.st_size
    os.close(fd)
    raise describe_other_file(path, b"", 0)


def read_header(read: Read, file_bytes: int, path: Path, file_index: int = 0) -> Header:
    """Parse and check the header of a file that `read` reads. Raises GGUFError or UnsupportedQuantType; reads nothing
    but the head.
    """
    cursor = Cursor(read, file_bytes, str(path))
    version = _read_magic(cursor, path)
    n_tensors, n_kv = cursor.u64(), cursor.u64()
    cursor.count(n_kv, _MIN_KV_BYTES, "metadata entries")
    cursor.count(n_tensors, _MIN_TENSOR_BYTES, "tensors")
    metadata, kinds = _read_metadata(cursor, n_kv)
    alignment = _alignment(cursor, metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    raw = _read_tensor_entries(cursor, n_tensors)
    data_start = cursor.pos + -cursor.pos % alignment
    tensors = [_locate(cursor, entry, data_start, alignment, file_index) for entry in raw]
    data_end = _check_overlaps(cursor, tensors, data_start)
    return Header(version, alignment, metadata, kinds, tensors, data_end, file_bytes, cursor.n_reads, cursor.n_fetched)


def _read_magic(cursor: Cursor, path: Path) -> int:
    head = cursor.data[:64]
    if head[:4] != b"GGUF"[: len(head)] or len(head) < 4:
        raise describe_other_file(path, head, cursor.file_bytes)
    cursor.need(4)
    version = cursor.u32()
    if version in VERSIONS:
        return version
    if version and version & 0xFFFF == 0:
        raise cursor.error("a big-endian GGUF; pearl reads little-endian files: convert it again for this byte order")
    raise cursor.error(
        f"GGUF version {version}; pearl reads versions 2 and 3: convert the model again with a newer tool"
    )


def _read_metadata(cursor: Cursor, n_kv: int) -> tuple[dict[str, Any], dict[str, Kind]]:
    metadata: dict[str, Any] = {}
    kinds: dict[str, Kind] = {}
    for number in range(n_kv):
        cursor.item = f"the key of metadata entry {number}"
        key = decode_text(cursor, cursor.raw_string())
        cursor.item = f"metadata {show(key)}"
        if key in metadata:
            raise cursor.error(f"{cursor.item} appears twice: the file is damaged or badly written")
        metadata[key], kinds[key] = read_value(cursor)
    return metadata, kinds


def _alignment(cursor: Cursor, value: Any) -> int:
    is_power = type(value) is int and 0 < value <= MAX_ALIGNMENT and value & (value - 1) == 0
    if not is_power:
        raise cursor.error(f"general.alignment is {show(str(value))}; it must be a power of two up to {MAX_ALIGNMENT}")
    return int(value)


def _read_tensor_entries(cursor: Cursor, n_tensors: int) -> list[tuple[str, tuple[int, ...], int, int]]:
    entries = []
    seen: set[str] = set()
    for number in range(n_tensors):
        cursor.item = f"the entry of tensor {number}"
        name = decode_text(cursor, cursor.raw_string())
        if name in seen:
            raise cursor.error(f"tensor {show(name)} appears twice: the file is damaged or badly written")
        seen.add(name)
        n_dims = cursor.u32()
        if not 1 <= n_dims <= MAX_DIMS:
            raise cursor.error(
                f"tensor {show(name)} has {n_dims} dimensions; GGUF allows 1 to {MAX_DIMS}: damaged file?"
            )
        *shape, type_id, offset = cursor.unpack(_ENTRY[n_dims])
        entries.append((name, tuple(shape), type_id, offset))
    return entries


def _locate(
    cursor: Cursor, entry: tuple[str, tuple[int, ...], int, int], data_start: int, alignment: int, file_index: int
) -> TensorInfo:
    name, shape, type_id, offset = entry
    if type_id not in _BLOCKS:
        known = [f"{t.name} ({t.value})" for t in QuantType]
        raise UnsupportedQuantType(f"id {type_id}", known, f"{cursor.where}: tensor {show(name)}")
    quant_type, n_weights, n_block_bytes = _BLOCKS[type_id]
    if 0 in shape:
        raise cursor.error(f"tensor {show(name)} has an empty dimension {list(shape)}: damaged file?")
    if shape[0] % n_weights:
        raise cursor.error(
            f"tensor {show(name)} has rows of {shape[0]} weights, but {quant_type.name} stores blocks of {n_weights}"
        )
    if offset % alignment:
        raise cursor.error(
            f"tensor {show(name)} starts at offset {offset}, which is no multiple of the alignment {alignment}"
        )
    n_bytes = math.prod(shape) // n_weights * n_block_bytes
    end = data_start + offset + n_bytes
    if end > cursor.file_bytes:
        raise cursor.error(
            f"the file is cut short: tensor {show(name)} needs bytes up to {end}, the file has {cursor.file_bytes}; "
            "download it again"
        )
    return TensorInfo(name, shape, quant_type, file_index, data_start + offset, n_bytes)


def _check_overlaps(cursor: Cursor, tensors: list[TensorInfo], data_start: int) -> int:
    """End of the last tensor. Raises GGUFError where two share bytes."""
    end, before = data_start, ""
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset < end:
            raise cursor.error(f"tensors {show(before)} and {show(tensor.name)} overlap: the file is damaged")
        end, before = tensor.offset + tensor.n_bytes, tensor.name
    return end
