"""llama.cpp's importance matrices: how large the inputs of each matrix column were over a calibration text.

Two forms are read: GGUF (for each matrix `NAME.in_sum2` and `NAME.counts`), and the older .dat (i32 entries | each: i32
length, name, i32 calls, i32 values, f32 values[] | i32 calls, i32 length, data set name). What the numbers do is the
quantisers' affair.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from convert.gguf_metadata import Metadata
from models.errors import FileError
from models.gguf import GGUFModel

Floats = NDArray[np.float32]
_EXPERT = re.compile(r"^(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight$")
_SMALLEST = 1e-6  # of the largest importance of a row: a column that never saw an input still counts a little
_MAX_NAME_BYTES = 1 << 10
_MAX_ENTRIES = 1 << 20
_FORMS = "llama.cpp's importance matrices, GGUF or .dat"


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """`entries`: by matrix name the mean square of each column's inputs, flat; experts of a stack one after another."""

    path: Path
    entries: dict[str, Floats]
    datasets: tuple[str, ...]
    chunks: int
    digest: str

    def rows_for(self, name: str, shape: tuple[int, ...]) -> Floats | None:
        """float32 [matrices, columns], all above 0, for the tensor `name` of ggml `shape` (an expert is one matrix of
        its stack); None where the file has nothing. Raises FileError where sizes do not fit.
        """
        n_cols, n_matrices = shape[0], shape[2] if len(shape) == 3 else 1
        expert = _EXPERT.match(name) if name not in self.entries else None
        values = self.entries.get(_stack_of(name) if expert else name)
        if values is None:
            return None
        first, n = (int(expert[2]), 1) if expert else (0, n_matrices)
        if values.size % n_cols or values.size < (first + n) * n_cols or (not expert and values.size != n * n_cols):
            raise FileError(
                f"{self.path}: {values.size} importances for {name}, whose rows have {n_cols} weights: made from "
                "another model?"
            )
        rows = values.reshape(-1, n_cols)[first : first + n]
        largest = rows.max(axis=1, keepdims=True)
        # All inputs zero, or none seen: every column counts the same.
        floored: Floats = np.where(largest > 0, np.maximum(rows, largest * np.float32(_SMALLEST)), np.float32(1))
        return floored

    def add_metadata(self, metadata: Metadata) -> None:
        """The keys by which llama-quantize tells where a file's importances came from."""
        metadata.string("quantize.imatrix.file", self.path.name)
        if self.datasets:
            metadata.string("quantize.imatrix.dataset", self.datasets[0])
        metadata.u32("quantize.imatrix.entries_count", len(self.entries))
        metadata.u32("quantize.imatrix.chunks_count", self.chunks)


def _stack_of(name: str) -> str:
    return _EXPERT.sub(r"\1_exps.weight", name)


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Read either form. Raises FileError, GGUFError."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
    digest = hashlib.sha256(raw).hexdigest()
    made = _read_gguf(path, digest) if raw.startswith(b"GGUF") else _read_dat(path, raw, digest)
    if not made.entries:
        raise FileError(f"{path}: an importance matrix without entries")
    for name, values in made.entries.items():
        if not np.isfinite(values).all() or (values < 0).any():
            raise FileError(f"{path}: {name} has importances that are no numbers from 0 up; make the file again")
    return made


def named_imatrix(path: Path) -> ImportanceMatrix:
    """The same for the flag --imatrix, with which a fault then begins."""
    try:
        return read_imatrix(path)
    except FileError as error:
        raise type(error)(f"--imatrix {error}") from error


def _read_gguf(path: Path, digest: str) -> ImportanceMatrix:
    with GGUFModel.open(path) as file:
        if file.metadata.get("general.type") != "imatrix":
            raise FileError(f"{path}: a GGUF, but no importance matrix (general.type is not 'imatrix')")
        entries = {}
        for name in file.tensors:
            if not name.endswith(".in_sum2"):
                continue
            stem = name.removesuffix(".in_sum2")
            if f"{stem}.counts" not in file.tensors:
                raise FileError(f"{path}: {name} without {stem}.counts; make the file again")
            sums = np.asarray(file.array(name), np.float32).reshape(-1)
            counts = np.asarray(file.array(f"{stem}.counts"), np.float32).reshape(-1)
            if not counts.size or sums.size % counts.size:
                raise FileError(f"{path}: {sums.size} sums and {counts.size} counts of {stem} do not go together")
            rows = sums.reshape(counts.size, -1)
            # An expert that no token was sent to: every column counts the same.
            means = np.divide(rows, counts[:, None], where=counts[:, None] > 0, out=np.ones_like(rows))
            entries[stem] = means.reshape(-1)
        datasets = tuple(str(item) for item in file.metadata.get("imatrix.datasets", ()))
        chunks = file.metadata.get("imatrix.chunk_count", 0)
    return ImportanceMatrix(path, entries, datasets, int(chunks), digest)


def _read_dat(path: Path, raw: bytes, digest: str) -> ImportanceMatrix:
    if not raw:
        raise FileError(f"{path}: an empty file; pearl reads {_FORMS}")
    entries: dict[str, Floats] = {}
    try:
        (count,), at = struct.unpack_from("<i", raw), 4
        if not 0 < count <= _MAX_ENTRIES:
            raise ValueError(f"{count} entries")
        for _ in range(count):
            name, entries[name], at = _read_dat_entry(raw, at)
    except struct.error:
        told = f"cut short after {len(entries)} entries" if entries else "cut short within the first entry"
        raise FileError(f"{path}: {told}; copy it again, or make it again") from None
    except ValueError:
        raise FileError(f"{path}: no importance matrix, or a damaged one; pearl reads {_FORMS}") from None
    datasets, chunks = _read_dat_tail(raw, at)
    return ImportanceMatrix(path, entries, datasets, chunks, digest)


def _read_dat_entry(raw: bytes, at: int) -> tuple[str, Floats, int]:
    """(matrix name, means, where the next entry begins) of the entry at byte `at`. Raises struct.error where the file
    ends before, ValueError for what no such file holds.
    """
    (length,) = struct.unpack_from("<i", raw, at)
    if not 0 < length <= _MAX_NAME_BYTES:
        raise ValueError(f"a name of {length} bytes")
    calls, size = struct.unpack_from("<ii", raw, at + 4 + length)
    name = raw[at + 4 : at + 4 + length].decode("utf-8")
    if size <= 0:
        raise ValueError(f"{size} values of {name}")
    at += 12 + length
    if size > (len(raw) - at) // 4:
        raise struct.error
    values = np.frombuffer(raw, "<f4", size, at).astype(np.float32)
    return name, values / np.float32(calls) if calls > 0 else values, at + 4 * size


def _read_dat_tail(raw: bytes, at: int) -> tuple[tuple[str, ...], int]:
    """(data set names, number of calls); older files end before."""
    if len(raw) - at < 8:
        return (), 0
    calls, length = struct.unpack_from("<ii", raw, at)
    if not 0 < length <= len(raw) - at - 8:
        return (), calls
    return (raw[at + 8 : at + 8 + length].decode("utf-8", "replace"),), calls
