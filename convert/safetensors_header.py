"""The head of one safetensors file, parsed and checked before anything of it is believed: names, types, shapes, byte
ranges.

Layout: u64 header length | JSON {name: {dtype, shape, data_offsets: [begin, end]}, "__metadata__"?} | data, offsets
relative to its start. Data is read elsewhere, by positioned reads.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from models.errors import CheckpointError
from models.gguf_cursor import show

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor as stored: `shape` in numpy order, `offset` from the start of the file."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def read_safetensors_header(path: Path) -> list[Stored]:
    """Every tensor of `path` in file order. Raises CheckpointError naming what is wrong and what to do."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
            raise CheckpointError(f"{path}: no regular file; weights are read from files only")
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            head = file.read(64)
            _check_content(path, head, file_bytes)
            (header_bytes,) = struct.unpack_from("<Q", head)
            if header_bytes > MAX_HEADER_BYTES or 8 + header_bytes > file_bytes:
                raise CheckpointError(
                    f"{path}: the header claims {header_bytes} bytes, the file has {file_bytes}: it is cut short or "
                    "damaged; download it again"
                )
            file.seek(8)
            text = file.read(header_bytes)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    tensors = _parse(path, text, 8 + header_bytes, file_bytes)
    _check_overlaps(path, tensors)
    return tensors


def _check_content(path: Path, head: bytes, file_bytes: int) -> None:
    start = head.lstrip().lower()
    if file_bytes == 0:
        raise CheckpointError(f"{path}: the file is empty (0 bytes); download it again")
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path}: a git-lfs pointer, {file_bytes} bytes, not the weights themselves; run git lfs pull"
        )
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise CheckpointError(
            f"{path}: an HTML page, not weights: the download returned an error or login page; download it again"
        )
    if head.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        raise CheckpointError(f"{path}: a pickle under a safetensors name; it can run code and is not read")
    if file_bytes < 10 or head[8:9] != b"{":
        raise CheckpointError(f"{path}: not a safetensors file, or cut short ({file_bytes} bytes); download it again")


def _parse(path: Path, text: bytes, data_start: int, file_bytes: int) -> list[Stored]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is no valid JSON ({show(str(error))}); download it again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is no JSON object; download it again")
    tensors = [
        _parse_entry(path, name, entry, data_start, file_bytes)
        for name, entry in header.items()
        if name != "__metadata__"
    ]
    if not tensors:
        raise CheckpointError(f"{path}: holds no tensors; download it again")
    return sorted(tensors, key=lambda tensor: tensor.offset)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _parse_entry(path: Path, name: str, entry: Any, data_start: int, file_bytes: int) -> Stored:
    where = f"{path}: tensor {show(name)}"
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, span = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or not _is_naturals(shape) or not _is_naturals(span) or len(span) != 2:
        raise CheckpointError(f"{where}: its header entry is malformed; download it again")
    if dtype not in DTYPE_BYTES:
        raise CheckpointError(f"{where}: unknown dtype {show(dtype)}; known: {', '.join(DTYPE_BYTES)}")
    begin, end = span
    if begin > end or data_start + end > file_bytes:
        raise CheckpointError(
            f"{where}: needs bytes {data_start + begin} to {data_start + end}, the file has {file_bytes}: it is cut "
            "short or damaged; download it again"
        )
    if math.prod(shape) * DTYPE_BYTES[dtype] != end - begin:
        raise CheckpointError(
            f"{where}: {dtype} {shape} does not take the {end - begin} bytes it claims; download it again"
        )
    return Stored(name, path, dtype, tuple(shape), data_start + begin, end - begin)


def _is_naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_overlaps(path: Path, tensors: list[Stored]) -> None:
    for before, after in pairwise(tensors):
        if after.offset < before.offset + before.n_bytes:
            raise CheckpointError(
                f"{path}: tensors {show(before.name)} and {show(after.name)} overlap: the header is damaged; "
                "download it again"
            )
