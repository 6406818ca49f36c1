"""Rows of the embedding table."""

from __future__ import annotations

import numpy as np

from kernels.backend import Weight
from kernels.reference.dequant import dequantize_rows


def embed_ref(table: Weight, token_ids: np.ndarray) -> np.ndarray:
    """Rows `token_ids` [T] of `table` as fresh float32 [T, D]. Raises ValueError for an id outside the table."""
    if token_ids.size:
        low, high = int(token_ids.min()), int(token_ids.max())
        if low < 0 or high >= table.n_rows:
            raise ValueError(f"token ids must lie in 0..{table.n_rows - 1}, got {low}..{high}")
    return dequantize_rows(np.asarray(table.data)[token_ids], table.quant_type, table.n_cols)
