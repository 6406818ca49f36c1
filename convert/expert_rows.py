"""Experts as gpt-oss stores them, brought into the rows of single matrices: gate and up taking turns, inputs before
outputs, MXFP4 with its scales apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from convert.rows import Bytes, Floats, OpenFile, Rearranged, Rows, to_floats
from kernels.quant_types import QuantType, block_bytes, block_size, row_bytes

_HALF = block_size(QuantType.MXFP4) // 2


@dataclass(frozen=True, slots=True)
class EveryNth(Rearranged):
    """`n_rows` rows of `base`: `start`, `start + step`, `start + 2 * step`, .."""

    base: Rows
    start: int
    step: int
    n_rows: int

    def source_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.start + rows * self.step


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Single numbers, the rows of `base`, as rows of `n_cols`."""

    base: Rows
    n_cols: int

    @property
    def n_rows(self) -> int:
        return self.base.n_rows // self.n_cols

    @property
    def quant_type(self) -> QuantType | None:
        return self.base.quant_type

    def raw(self, first: int, n: int) -> Bytes:
        return self.base.raw(first * self.n_cols, n * self.n_cols)

    def floats(self, first: int, n: int) -> Floats:
        return self.base.floats(first * self.n_cols, n * self.n_cols).reshape(n, self.n_cols)


@dataclass(frozen=True, slots=True)
class TransposedRows:
    """A stack of matrices [n_cols, m] as the rows [stack * m, n_cols] of their transposes, of plain numbers.

    A read of some rows takes in their whole matrices.
    """

    base: Rows
    n_cols: int

    @property
    def n_rows(self) -> int:
        return self.base.n_rows // self.n_cols * self.base.n_cols

    @property
    def quant_type(self) -> QuantType | None:
        return self.base.quant_type

    def raw(self, first: int, n: int) -> Bytes:
        assert self.base.quant_type is not None
        size = row_bytes(self.base.quant_type, 1)
        parts = [
            self.base.raw(m * self.n_cols, self.n_cols).reshape(self.n_cols, -1, size)[:, low:high].swapaxes(0, 1)
            for m, low, high in self._parts(first, n)
        ]
        return np.concatenate(parts).reshape(-1)

    def floats(self, first: int, n: int) -> Floats:
        parts = [
            self.base.floats(m * self.n_cols, self.n_cols)[:, low:high].T for m, low, high in self._parts(first, n)
        ]
        return np.concatenate(parts)

    def _parts(self, first: int, n: int) -> list[tuple[int, int, int]]:
        """(matrix, first column, stop column) of each matrix that the rows are of."""
        m, matrices = self.base.n_cols, range(first // self.base.n_cols, (first + n - 1) // self.base.n_cols + 1)
        return [(i, max(first - i * m, 0), min(first + n - i * m, m)) for i in matrices]


@dataclass(frozen=True, slots=True)
class Mxfp4Rows:
    """MXFP4 as gpt-oss ships it: bytes of two neighbouring weights, low half first, and the blocks' scales in a tensor
    of their own. `raw` gives a GGUF's blocks: the scale byte, then bytes of weights i (low half) and i + 16.
    """

    blocks: OpenFile
    blocks_offset: int
    scales: OpenFile
    scales_offset: int
    n_rows: int
    n_cols: int
    quant_type: QuantType = QuantType.MXFP4

    def raw(self, first: int, n: int) -> Bytes:
        per_row = self.n_cols // (2 * _HALF)
        at, n_blocks = first * per_row, n * per_row
        packed = self.blocks.read(self.blocks_offset + at * _HALF, n_blocks * _HALF).reshape(n_blocks, _HALF)
        out = np.empty((n_blocks, block_bytes(QuantType.MXFP4)), np.uint8)
        out[:, 0] = self.scales.read(self.scales_offset + at, n_blocks)
        codes = np.empty((n_blocks, 2 * _HALF), np.uint8)
        codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
        out[:, 1:] = codes[:, :_HALF] | codes[:, _HALF:] << 4
        return out.reshape(-1)

    def floats(self, first: int, n: int) -> Floats:
        return to_floats(self.raw(first, n), self.quant_type, self.n_cols)
