"""The selective scan over prompts: CHUNK tokens of a head at a time, as matrix products (arXiv 2405.21060, section 6).

Written out, with P_i the decay from the chunk's beginning through token i and D_ij that of the tokens behind j through
i, S the state before the chunk and s_j x_j what token j writes:

    out_i = P_i S^T C_i + sum over j <= i of D_ij (C_i . B_j) s_j x_j + skip x_i
    S'    = P_last S + sum over j of D_last,j B_j (s_j x_j)^T

selective_scan.py does the same token by token, and defines it. Decays are products of numbers up to 1, never quotients,
so that a step that forgets everything divides by nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from kernels.cpu.addresses import address
from kernels.cpu.float_rows import float_row
from kernels.cpu.row_products import ROWS, products
from kernels.cpu.softplus import softplus

CHUNK = 32
"""Tokens of a chunk. More of them share each read of the state, but their products with each other grow with the
square."""

MIN_TOKENS = 8
"""From here on chunks are faster than token by token."""


@njit(nogil=True, cache=True)
def _decay(n, kept, c, mixed, decays):
    """Decay what the products need (mutates all but n, kept): mixed [C, C] from C_i . B_j to D_ij (C_i . B_j), 0 above
    the diagonal; C_i by P_i. What becomes of B_j for the state goes into decays [C] = D_last,j; P_last is returned.
    """
    through = np.float32(1.0)
    for i in range(n):
        through *= kept[i]
        for j in range(i):
            decays[j] *= kept[i]
            mixed[i, j] *= decays[j]
        decays[i] = 1.0
        for j in range(i + 1, mixed.shape[1]):
            mixed[i, j] = 0.0
        c[i] *= through
    return through


@njit(nogil=True, cache=True)
def _chunk(n, kept, b, c, turned, mixed, decays, written, state, out, out_stride, forms, factors):
    """One chunk of n <= CHUNK tokens of one head: b, c [C, n], written [C, p]. Mutates all arrays; `out` is the address
    of the chunk's first row of outputs; factors [2] begins with 1.
    """
    state_size, head_dim = state.shape
    one, width = address(factors), 4 * head_dim
    for i in range(n):
        turned[:, i] = b[i]
    for first in range(0, n, ROWS):
        products(
            forms, True, address(mixed[first]), 4 * CHUNK, one, address(c[first]), 4 * state_size, 4,
            address(turned), 4 * CHUNK, ROWS, state_size, min(CHUNK, (first + ROWS + 15) // 16 * 16),
        )  # fmt: skip
    factors[1] = _decay(n, kept, c, mixed, decays)
    products(
        forms, True, out, out_stride, one, address(c), 4 * state_size, 4, address(state), width, n, state_size, head_dim
    )
    for first in range(0, n, ROWS):
        rows = min(ROWS, n - first)
        products(
            forms, False, out + first * out_stride, out_stride, one, address(mixed[first]), 4 * CHUNK, 4,
            address(written), width, rows, first + rows, head_dim,
        )  # fmt: skip
    for j in range(n):
        b[j] *= decays[j]
    products(
        forms, False, address(state), width, address(factors[1:]), address(b), 4, 4 * state_size, address(written),
        width, state_size, n, head_dim,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _head(h, num_groups, xbc, dt, strides, decay, dt_bias, skip, state, out, forms):
    """All tokens of head h; xbc and dt: addresses of the first rows, `strides` apart."""
    heads, state_size, head_dim = state.shape
    b, c = np.zeros((CHUNK, state_size), np.float32), np.zeros((CHUNK, state_size), np.float32)
    turned, mixed = np.zeros((state_size, CHUNK), np.float32), np.zeros((CHUNK, CHUNK), np.float32)
    written = np.zeros((CHUNK, head_dim), np.float32)
    kept, decays, factors = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32), np.ones(2, np.float32)
    b_at = heads * head_dim + h // (heads // num_groups) * state_size
    c_at = b_at + num_groups * state_size
    for start in range(0, out.shape[0], CHUNK):
        n = min(CHUNK, out.shape[0] - start)
        for i in range(n):
            row = xbc + (start + i) * strides[0]
            step = np.float32(softplus(float_row(dt + (start + i) * strides[1], h + 1)[h] + dt_bias[h]))
            kept[i] = math.exp(decay[h] * step)
            b[i] = float_row(row + 4 * b_at, state_size)
            c[i] = float_row(row + 4 * c_at, state_size)
            x = float_row(row + 4 * h * head_dim, head_dim)
            for j in range(head_dim):
                written[i, j] = step * x[j]
        to = address(out[start, h * head_dim :])
        _chunk(n, kept, b, c, turned, mixed, decays, written, state[h], to, 4 * out.shape[1], forms, factors)
        for i in range(n):
            x = float_row(xbc + (start + i) * strides[0] + 4 * h * head_dim, head_dim)
            mixed_row = out[start + i, h * head_dim : (h + 1) * head_dim]
            for j in range(head_dim):
                mixed_row[j] += skip[h] * x[j]


@njit(nogil=True, cache=True, parallel=True)
def heads_by_chunks(num_groups, xbc, dt, strides, decay, dt_bias, skip, state, out, forms):
    """Every head over all tokens (mutates `state` and `out`), as `selective_scan._heads`; forms: of row_products."""
    for h in prange(state.shape[0]):
        _head(h, num_groups, xbc, dt, strides, decay, dt_bias, skip, state, out, forms)
