"""Rows of the embedding table, dequantised; a few rows a call, so the format's own numpy code is fast enough."""

from __future__ import annotations

import numpy as np

from kernels.backend import Weight
from kernels.reference.embed import embed_ref


def embed(table: Weight, token_ids: np.ndarray) -> np.ndarray:
    """Rows `token_ids` int64 [T] of `table` as fresh float32 [T, D]. Raises ValueError for an id outside the table."""
    return embed_ref(table, token_ids)
