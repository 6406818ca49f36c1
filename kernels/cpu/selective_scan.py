"""The selective scan of Mamba-2, token by token: each head's matrix stays in cache while all tokens of a call go over
it. Prompts go by chunks (scan_chunks.py).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from kernels.cpu.addresses import address
from kernels.cpu.float_rows import float_row
from kernels.cpu.recycled import new_rows
from kernels.cpu.row_products import products, row_products_addresses
from kernels.cpu.scan_chunks import MIN_TOKENS, heads_by_chunks
from kernels.cpu.softplus import softplus
from kernels.selective_scan import SelectiveScan


@njit(nogil=True, cache=True)
def _head(h, num_groups, xbc, dt, strides, decay, dt_bias, skip, state, out, forms):
    """All tokens of head h; xbc and dt: addresses of the first rows, `strides` apart."""
    heads, state_size, head_dim = state.shape
    width, row_bytes = heads * head_dim, 4 * head_dim
    b_at = width + h // (heads // num_groups) * state_size
    c_at = b_at + num_groups * state_size
    written, factor = np.empty(head_dim, np.float32), np.empty(1, np.float32)
    memory = address(state[h])
    for t in range(out.shape[0]):
        row = xbc + t * strides[0]
        step = np.float32(softplus(float_row(dt + t * strides[1], h + 1)[h] + dt_bias[h]))
        factor[0] = math.exp(decay[h] * step)
        x, mixed = float_row(row + row_bytes * h, head_dim), out[t, h * head_dim : (h + 1) * head_dim]
        for j in range(head_dim):
            written[j] = step * x[j]
        products(
            forms, False, memory, row_bytes, address(factor), row + 4 * b_at, 4, 4, address(written), row_bytes,
            state_size, 1, head_dim,
        )  # fmt: skip
        products(
            forms, True, address(mixed), row_bytes, address(factor), row + 4 * c_at, 0, 4, memory, row_bytes, 1,
            state_size, head_dim,
        )  # fmt: skip
        for j in range(head_dim):
            mixed[j] += skip[h] * x[j]


@njit(nogil=True, cache=True, parallel=True)
def _heads(num_groups, xbc, dt, strides, decay, dt_bias, skip, state, out, forms):
    for h in prange(state.shape[0]):
        _head(h, num_groups, xbc, dt, strides, decay, dt_bias, skip, state, out, forms)


def selective_scan(xbc: np.ndarray, dt: np.ndarray, scan: SelectiveScan, state: np.ndarray) -> np.ndarray:
    """See `RecurrentOps.selective_scan`: fresh float32 [T, H * p]; mutates `state`.

    Raises ValueError for shapes that do not fit each other.
    """
    heads, n_tokens = scan.num_heads, xbc.shape[0]
    width = heads * scan.head_dim + 2 * scan.num_groups * scan.state_size
    if xbc.shape[1] != width or dt.shape != (n_tokens, heads) or heads % scan.num_groups:
        raise ValueError(f"a scan of {heads} heads over rows {xbc.shape} with steps {dt.shape}")
    if state.shape != (heads, scan.state_size, scan.head_dim) or not state.flags.c_contiguous:
        raise ValueError(f"a scan of {heads} heads with a state {state.shape}")
    if xbc.strides[1] != 4 or dt.strides[1] != 4:
        raise ValueError("the scan reads rows of contiguous float32")
    out = new_rows(n_tokens, heads * scan.head_dim)
    function = _heads if n_tokens < MIN_TOKENS else heads_by_chunks
    function(
        scan.num_groups, xbc.ctypes.data, dt.ctypes.data, (xbc.strides[0], dt.strides[0]), scan.decay, scan.dt_bias,
        scan.skip, state, out, row_products_addresses(),
    )  # fmt: skip
    return out
