"""RMS norm (arXiv 1910.07467) in float32: whole rows, and the heads inside a row.

`norm_row` is exported for kernels that go on with the normed row while it is in cache (norm + quantise). The sum of
squares has a fixed order that no caller changes.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from kernels.cpu.float_rows import float_row, sum_squares
from kernels.cpu.recycled import new_rows


@njit(nogil=True, cache=True, error_model="numpy")
def norm_row(x, weight, eps, out):
    """out = x / sqrt(mean(x^2) + eps) * weight for one contiguous float32 row; `out` may be `x`."""
    scale = np.float32(1.0) / np.sqrt(sum_squares(x) / np.float32(x.shape[0]) + np.float32(eps))
    for i in range(x.shape[0]):
        out[i] = x[i] * scale * weight[i]


@njit(nogil=True, cache=True)
def _norm_runs(x_row, weight, eps, out_row):
    width = weight.shape[0]
    for first in range(0, x_row.shape[0], width):
        norm_row(x_row[first : first + width], weight, eps, out_row[first : first + width])


@njit(nogil=True, cache=True)
def _norm_one(x, weight, eps, out):
    _norm_runs(x[0], weight, eps, out[0])


@njit(nogil=True, cache=True, parallel=True)
def _norm_parallel(x_address, x_stride, n_tokens, row_width, weight, eps, out_address, out_stride):
    for i in prange(n_tokens):
        x_row = float_row(x_address + i * x_stride, row_width)
        _norm_runs(x_row, weight, eps, float_row(out_address + i * out_stride, row_width))


def norm_rows(x: np.ndarray, weight: np.ndarray, eps: float, out: np.ndarray) -> None:
    """Norm each run of len(weight) in the float32 rows of x [T, n * len(weight)] into `out`, which may be x.

    Rows may lie apart, each row itself is contiguous. Raises ValueError where the runs do not divide a row.
    """
    n_tokens, row_width = x.shape
    if row_width % weight.shape[0] or out.shape != x.shape:
        raise ValueError(f"a norm weight {weight.shape} for rows {x.shape} into {out.shape}")
    if x.strides[1] != 4 or out.strides[1] != 4:
        raise ValueError("norm reads and writes rows of contiguous float32")
    if n_tokens == 1:  # a single row is contiguous
        _norm_one(x, weight, eps, out)
        return
    x_rows, out_rows = (x.ctypes.data, x.strides[0]), (out.ctypes.data, out.strides[0])
    _norm_parallel(*x_rows, n_tokens, row_width, weight, eps, *out_rows)


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm of float32 x [T, D] by weight [D]: fresh float32 [T, D]."""
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"a norm weight {weight.shape} for rows of {x.shape[-1]}")
    out = new_rows(*x.shape)
    norm_rows(x, weight, eps, out)
    return out


def head_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm in place over each run of len(weight) in the rows of float32 x [T, n * len(weight)]; returns x."""
    norm_rows(x, weight, eps, x)
    return x
