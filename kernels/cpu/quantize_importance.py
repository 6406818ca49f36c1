"""How much each weight counts in the quantisers' searches when an importance matrix says what its column's inputs were.

ggml's rule: importance of the column times sqrt(mean square of the block's surroundings + x^2); for Q6_K the importance
alone. Without a matrix each quantiser has a rule of its own.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NONE = -1.0  # as `sigma`: the weight's own size plays no part


def per_block(importance: np.ndarray | None, width: int) -> np.ndarray:
    """float32 [n_cols] as [n_cols / width, width]: block b of consecutive rows takes entry b % length. [0, width]
    without.
    """
    if importance is None:
        return np.zeros((0, width), np.float32)
    return np.ascontiguousarray(importance, np.float32).reshape(-1, width)


def mean_squares(x: np.ndarray, sigma: float) -> np.ndarray:
    """`sigma` times the mean square of every row of `x`, float32 [n]; all NONE where `sigma` is."""
    if sigma == NONE:
        return np.full(x.shape[0], NONE, np.float32)
    return np.float32(sigma) * np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])


@njit(nogil=True, cache=True, error_model="numpy")
def weigh(importance, mean_square, b, start, v, w):
    """Fill `w` for the weights `v`, which begin at `start` of block b."""
    row = b % importance.shape[0]
    for i in range(v.size):
        w[i] = importance[row, start + i]
        if mean_square >= 0:
            w[i] *= np.sqrt(mean_square + v[i] * v[i])
