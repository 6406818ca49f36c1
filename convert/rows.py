"""Where a matrix's rows come from: positioned reads of a file, in any stored type, a few rows at a time.

A `Rows` never holds the matrix, so a conversion's memory does not grow with the model. One linear of one expert is
always one `Rows`, also where the checkpoint stacks or fuses experts: a `Slice` of the stack.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from kernels.quant_types import QuantType, row_bytes
from models.errors import ReadFailure

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
# Wanted rows with at most one other between them are read together: never more than twice what is wanted, and rows
# that take turns with others do not cost a read each.
_CLOSE = 2


class Rows(Protocol):
    """`n_rows` rows of `n_cols` weights. `quant_type` is how they are stored, None where GGUF has no such type."""

    @property
    def n_rows(self) -> int: ...
    @property
    def n_cols(self) -> int: ...
    @property
    def quant_type(self) -> QuantType | None: ...

    def raw(self, first: int, n: int) -> Bytes:
        """Rows first .. first + n as stored, flat uint8. Raises ReadFailure; ValueError where `quant_type` is None."""
        ...

    def floats(self, first: int, n: int) -> Floats:
        """The same rows as float32 [n, n_cols]. Raises ReadFailure."""
        ...


class OpenFile:
    """A file opened for positioned reads from any thread; closed by `close`, or with the last use of the object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        self._finalizer = weakref.finalize(self, os.close, self._fd)

    def read(self, offset: int, n_bytes: int) -> Bytes:
        """A fresh array of `n_bytes` from `offset`. Raises ReadFailure where the file ends before."""
        out = np.empty(n_bytes, dtype=np.uint8)
        view, done = out.data, 0
        while done < n_bytes:
            try:
                n = os.preadv(self._fd, [view[done : done + (1 << 30)]], offset + done)
            except OSError as error:
                raise ReadFailure(f"{self.path}: cannot be read: {error.strerror}") from None
            if n == 0:
                raise ReadFailure(
                    f"{self.path}: ends at byte {offset + done}, {offset + n_bytes} are needed: it was cut while open"
                )
            done += n
        return out

    def close(self) -> None:
        self._finalizer()


def to_floats(raw: Bytes, quant_type: QuantType, n_cols: int) -> Floats:
    """Rows stored as `quant_type` as float32 [n, n_cols]; exact."""
    if quant_type is QuantType.F32:
        return raw.view("<f4").astype(np.float32, copy=False).reshape(-1, n_cols)
    if quant_type is QuantType.F16:
        return raw.view("<f2").astype(np.float32).reshape(-1, n_cols)
    if quant_type is QuantType.BF16:
        widened: Floats = (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        return widened.reshape(-1, n_cols)
    values: Floats = dequantize(raw.reshape(-1, row_bytes(quant_type, n_cols)), quant_type)
    return values.reshape(-1, n_cols)


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows that lie one after another in a file from `offset`."""

    file: OpenFile
    offset: int
    n_rows: int
    n_cols: int
    quant_type: QuantType

    def raw(self, first: int, n: int) -> Bytes:
        size = row_bytes(self.quant_type, self.n_cols)
        return self.file.read(self.offset + first * size, n * size)

    def floats(self, first: int, n: int) -> Floats:
        return to_floats(self.raw(first, n), self.quant_type, self.n_cols)


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """A few rows of float32 that are in memory."""

    array: Floats
    quant_type: QuantType = QuantType.F32

    @property
    def n_rows(self) -> int:
        return int(self.array.shape[0])

    @property
    def n_cols(self) -> int:
        return int(self.array.shape[1])

    def raw(self, first: int, n: int) -> Bytes:
        return self.floats(first, n).reshape(-1).view(np.uint8)

    def floats(self, first: int, n: int) -> Floats:
        return np.ascontiguousarray(self.array[first : first + n], "<f4")


@dataclass(frozen=True, slots=True)
class Slice:
    """`n_rows` rows of `base` from row `start`: one expert of a stack, or one half of a fused matrix."""

    base: Rows
    start: int
    n_rows: int

    @property
    def n_cols(self) -> int:
        return self.base.n_cols

    @property
    def quant_type(self) -> QuantType | None:
        return self.base.quant_type

    def raw(self, first: int, n: int) -> Bytes:
        return self.base.raw(self.start + first, n)

    def floats(self, first: int, n: int) -> Floats:
        return self.base.floats(self.start + first, n)


class Rearranged(ABC):
    """Rows of `base` in another order: each is read once, those that lie close together there in one read."""

    __slots__ = ()
    base: Rows

    @abstractmethod
    def source_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of `base` behind each of these."""

    @property
    def n_cols(self) -> int:
        return self.base.n_cols

    @property
    def quant_type(self) -> QuantType | None:
        return self.base.quant_type

    def raw(self, first: int, n: int) -> Bytes:
        runs, place = self._runs(first, n)
        return np.concatenate([self.base.raw(*run).reshape(run[1], -1) for run in runs])[place].reshape(-1)

    def floats(self, first: int, n: int) -> Floats:
        runs, place = self._runs(first, n)
        return np.concatenate([self.base.floats(*run) for run in runs])[place]

    def _runs(self, first: int, n: int) -> tuple[list[tuple[int, int]], NDArray[np.int64]]:
        """([(first row of `base`, number of rows)] to read, ascending, and which of the rows read to take in turn)."""
        source = self.source_rows(np.arange(first, first + n))
        wanted = np.unique(source)
        new_run = np.diff(wanted) > _CLOSE
        firsts, lasts = wanted[np.r_[True, new_run]], wanted[np.r_[new_run, True]]
        sizes = lasts - firsts + 1
        run = np.searchsorted(firsts, source, side="right") - 1
        place: NDArray[np.int64] = source - firsts[run] + (np.cumsum(sizes) - sizes)[run]
        return list(zip(firsts.tolist(), sizes.tolist(), strict=True)), place


@dataclass(frozen=True, slots=True)
class RopePermuted(Rearranged):
    """`base`'s rows in the order in which llama.cpp's `llama` architecture wants q and k.

    Hugging Face keeps the two halves of each head's rotary pairs apart, GGUF puts a pair side by side: with 8 rows a
    head the order is 0 4 1 5 2 6 3 7. Other architectures rotate halves in GGUF too and are left as they are.
    """

    base: Rows
    head_dim: int

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    def source_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        head, within = np.divmod(rows, self.head_dim)
        pair, half = np.divmod(within, 2)
        source: NDArray[np.int64] = head * self.head_dim + half * (self.head_dim // 2) + pair
        return source


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """8-bit floats (e4m3) with one scale for each block of `block` rows and columns; ragged blocks at the edges are
    allowed. The rows may be those of a stack of matrices of `matrix_rows` each, in which blocks begin anew.
    """

    file: OpenFile
    offset: int
    n_rows: int
    n_cols: int
    scales: Floats  # [matrices * ceil(matrix_rows / block[0]), ceil(n_cols / block[1])]
    block: tuple[int, int]
    matrix_rows: int
    scales_from: Path | None = None
    quant_type: None = None

    def raw(self, first: int, n: int) -> Bytes:
        raise ValueError("GGUF has no 8-bit float type: these rows can only be read as floats")

    def floats(self, first: int, n: int) -> Floats:
        from ml_dtypes import float8_e4m3fn

        codes = self.file.read(self.offset + first * self.n_cols, n * self.n_cols).reshape(n, self.n_cols)
        values: Floats = codes.view(float8_e4m3fn).astype(np.float32)
        matrix, row = np.divmod(np.arange(first, first + n), self.matrix_rows)
        row_scales = self.scales[matrix * -(-self.matrix_rows // self.block[0]) + row // self.block[0]]
        values *= np.repeat(row_scales, self.block[1], axis=1)[:, : self.n_cols]
        return values
