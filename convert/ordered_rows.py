"""Matrices whose rows or columns a GGUF keeps in another order than the checkpoint, and vectors that it keeps as
another function of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from convert.rows import Bytes, Floats, Rearranged, Rows
from kernels.quant_types import QuantType, block_size, row_bytes

Order = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OrderedRows(Rearranged):
    """Row i is row order[i] of `base`."""

    base: Rows
    order: Order

    @property
    def n_rows(self) -> int:
        return int(self.order.size)

    def source_rows(self, rows: Order) -> Order:
        return self.order[rows]


@dataclass(frozen=True, slots=True)
class OrderedColumns:
    """Column i is column order[i] of `base`; where columns are blocks of several, they come as floats alone."""

    base: Rows
    order: Order

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def n_cols(self) -> int:
        return self.base.n_cols

    @property
    def quant_type(self) -> QuantType | None:
        own = self.base.quant_type
        return own if own is not None and block_size(own) == 1 else None

    def raw(self, first: int, n: int) -> Bytes:
        if self.quant_type is None:
            raise ValueError("columns of blocks can only be read as floats")
        numbers = self.base.raw(first, n).reshape(n, self.n_cols, row_bytes(self.quant_type, 1))
        return numbers[:, self.order].reshape(-1)

    def floats(self, first: int, n: int) -> Floats:
        return self.base.floats(first, n)[:, self.order]


@dataclass(frozen=True, slots=True)
class Computed:
    """`function` of the numbers of `base`, in float32."""

    base: Rows
    function: Callable[[Floats], Floats]
    quant_type: QuantType = QuantType.F32

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def n_cols(self) -> int:
        return self.base.n_cols

    def raw(self, first: int, n: int) -> Bytes:
        return self.floats(first, n).reshape(-1).view(np.uint8)

    def floats(self, first: int, n: int) -> Floats:
        return np.ascontiguousarray(self.function(self.base.floats(first, n)), np.float32)
