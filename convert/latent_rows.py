"""`kv_b_proj` of latent attention as the two tensors that a GGUF keeps it in, read head by head.

The checkpoint's matrix [heads * (nope_dim + value_dim), rank] holds, head after head, the rows that expand a key and
those that expand a value. A GGUF has `attn_k_b` [heads, rank, nope_dim], each head transposed, and `attn_v_b`
[heads, value_dim, rank].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from convert.rows import Bytes, Floats, Rearranged, Rows
from kernels.quant_types import QuantType, row_bytes


@dataclass(frozen=True, slots=True)
class ValueExpansion(Rearranged):
    """`attn_v_b` as rows [heads * value_dim, rank]: of every head of `base` the rows behind the first `nope_dim`."""

    base: Rows
    nope_dim: int
    value_dim: int

    @property
    def n_rows(self) -> int:
        return self.base.n_rows // (self.nope_dim + self.value_dim) * self.value_dim

    def source_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        head, within = np.divmod(rows, self.value_dim)
        return head * (self.nope_dim + self.value_dim) + self.nope_dim + within


@dataclass(frozen=True, slots=True)
class KeyExpansion:
    """`attn_k_b` as rows [heads * rank, nope_dim]: of every head of `base` the first `nope_dim` rows, transposed.

    Only for plain numbers: transposing crosses the blocks of a quantised row.
    """

    base: Rows
    nope_dim: int
    value_dim: int

    @property
    def n_rows(self) -> int:
        return self.base.n_rows // (self.nope_dim + self.value_dim) * self.base.n_cols

    @property
    def n_cols(self) -> int:
        return self.nope_dim

    @property
    def quant_type(self) -> QuantType | None:
        return self.base.quant_type

    def raw(self, first: int, n: int) -> Bytes:
        rank = self.base.n_cols
        size = row_bytes(self.base.quant_type, 1) if self.base.quant_type is not None else 0
        first_head, heads = self._heads(first, n)
        parts = [
            self.base.raw(self._start(h), self.nope_dim).reshape(self.nope_dim, rank, size).swapaxes(0, 1)
            for h in heads
        ]
        skip = first - first_head * rank
        return np.concatenate(parts)[skip : skip + n].reshape(-1)

    def floats(self, first: int, n: int) -> Floats:
        first_head, heads = self._heads(first, n)
        parts = [self.base.floats(self._start(h), self.nope_dim).T for h in heads]
        skip = first - first_head * self.base.n_cols
        return np.concatenate(parts)[skip : skip + n]

    def _start(self, head: int) -> int:
        return head * (self.nope_dim + self.value_dim)

    def _heads(self, first: int, n: int) -> tuple[int, range]:
        rank = self.base.n_cols
        return first // rank, range(first // rank, (first + n - 1) // rank + 1)
