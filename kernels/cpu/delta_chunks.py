"""The gated delta rule over prompts: CHUNK tokens of a head at a time, as matrix products (arXiv 2412.06464, 3.3).

Written out, with P_i the decay from the chunk's beginning through token i and D_ij that of the tokens behind j through
i, and S the state before the chunk:

    delta_i = rate_i (v_i - P_i S^T k_i - sum over j < i of D_ij (k_i . k_j) delta_j)      what token i writes
    out_i   = P_i S^T q_i + sum over j <= i of D_ij (q_i . k_j) delta_j
    S'      = P_last S + sum over j of D_last,j k_j delta_j^T

delta_rule.py does the same token by token, and defines it. Decays are products of numbers up to 1, never quotients, so
that a gate that forgets everything divides by nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from kernels.cpu.addresses import address
from kernels.cpu.delta_gates import kept_of, rate_of, unit
from kernels.cpu.float_rows import float_row
from kernels.cpu.row_products import ROWS, products

CHUNK = 32
"""Tokens of a chunk. More of them share each read of the state, but what they write to each other grows with the
square."""

MIN_TOKENS = 16
"""From here on chunks are faster than token by token."""


@njit(nogil=True, cache=True)
def _coefficients(n, rates, kept, q, k, left, mixed, decays):
    """Decay what the products need (mutates all but n, rates, kept): left [C, C] from k_i . k_j to -rate_i D_ij
    (k_i . k_j), mixed from q_i . k_j to D_ij (q_i . k_j), 0 above the diagonal; q_i by P_i; k_i by -rate_i P_i. What
    becomes of k_j for the state goes into decays [C] = D_last,j; P_last is returned.
    """
    through = np.float32(1.0)
    for i in range(n):
        through *= kept[i]
        for j in range(i):
            decays[j] *= kept[i]
            left[i, j] *= -rates[i] * decays[j]
            mixed[i, j] *= decays[j]
        decays[i] = 1.0
        for j in range(i + 1, mixed.shape[1]):
            mixed[i, j] = 0.0
        q[i] *= through
        k[i] *= -rates[i] * through
    return through


@njit(nogil=True, cache=True)
def _solve(n, left, delta, forms, one):
    """delta_i += sum over j < i of left_ij delta_j, i from 0 on (mutates delta): groups by what lies before them, rows
    of a group by each other.
    """
    stride, width = 4 * delta.shape[1], delta.shape[1]
    for first in range(0, n, ROWS):
        if first:
            products(
                forms, False, address(delta[first]), stride, one, address(left[first]), 4 * left.shape[1], 4,
                address(delta), stride, ROWS, first, width,
            )  # fmt: skip
        for i in range(first + 1, min(first + ROWS, n)):
            row = delta[i]
            for j in range(first, i):
                factor, other = left[i, j], delta[j]
                for c in range(width):
                    row[c] += factor * other[c]


@njit(nogil=True, cache=True)
def _chunk(n, rates, kept, q, k, turned, left, mixed, decays, delta, state, out, out_stride, forms, factors):
    """One chunk of n <= CHUNK tokens of one head: q, k [C, dk] unit rows, delta [C, dv] holds rate_i v_i. Mutates all
    arrays; `out` is the address of the chunk's first row of outputs; factors [2] begins with 1.
    """
    key_dim, value_dim = state.shape
    one = address(factors)
    for i in range(n):
        turned[:, i] = k[i]
    for coefficients, rows in ((left, k), (mixed, q)):
        for first in range(0, n, ROWS):
            products(
                forms, True, address(coefficients[first]), 4 * CHUNK, one, address(rows[first]), 4 * key_dim, 4,
                address(turned), 4 * CHUNK, ROWS, key_dim, min(CHUNK, (first + ROWS + 15) // 16 * 16),
            )  # fmt: skip
    factors[1] = _coefficients(n, rates, kept, q, k, left, mixed, decays)
    width = 4 * value_dim
    groups = (n + ROWS - 1) // ROWS * ROWS
    products(
        forms, False, address(delta), width, one, address(k), 4 * key_dim, 4, address(state), width, groups, key_dim,
        value_dim,
    )  # fmt: skip
    _solve(n, left, delta, forms, one)
    products(
        forms, True, out, out_stride, one, address(q), 4 * key_dim, 4, address(state), width, n, key_dim, value_dim
    )
    for first in range(0, n, ROWS):
        rows = min(ROWS, n - first)
        products(
            forms, False, out + first * out_stride, out_stride, one, address(mixed[first]), 4 * CHUNK, 4,
            address(delta), width, rows, first + rows, value_dim,
        )  # fmt: skip
    for j in range(n):
        for c in range(key_dim):
            k[j, c] = decays[j] * turned[c, j]
    products(
        forms, False, address(state), width, address(factors[1:]), address(k), 4, 4 * key_dim, address(delta), width,
        key_dim, n, value_dim,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _head(h, key_head, num_key_heads, qkv, beta, alpha, strides, decay, dt_bias, state, out, forms):
    """All tokens of value head h; qkv, beta, alpha: addresses of the first rows, `strides` apart."""
    key_dim, value_dim = state.shape[1:]
    q, k = np.zeros((CHUNK, key_dim), np.float32), np.zeros((CHUNK, key_dim), np.float32)
    turned = np.zeros((key_dim, CHUNK), np.float32)
    left, mixed = np.zeros((CHUNK, CHUNK), np.float32), np.zeros((CHUNK, CHUNK), np.float32)
    delta = np.zeros((CHUNK, value_dim), np.float32)
    rates, kept, decays = np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32), np.empty(CHUNK, np.float32)
    factors = np.ones(2, np.float32)
    q_at, k_at = key_head * key_dim, (num_key_heads + key_head) * key_dim
    v_at = 2 * num_key_heads * key_dim + h * value_dim
    for start in range(0, out.shape[0], CHUNK):
        n = min(CHUNK, out.shape[0] - start)
        for i in range(n):
            t = start + i
            row = qkv + t * strides[0]
            unit(float_row(row + 4 * q_at, key_dim), 1.0 / math.sqrt(key_dim), q[i])
            unit(float_row(row + 4 * k_at, key_dim), 1.0, k[i])
            rates[i] = rate_of(float_row(beta + t * strides[1], h + 1)[h])
            kept[i] = kept_of(float_row(alpha + t * strides[2], h + 1)[h], decay[h], dt_bias[h])
            v = float_row(row + 4 * v_at, value_dim)
            for c in range(value_dim):
                delta[i, c] = rates[i] * v[c]
        k[n:] = 0.0
        delta[n:] = 0.0
        to = address(out[start, h * value_dim :])
        _chunk(
            n, rates, kept, q, k, turned, left, mixed, decays, delta, state[h], to, 4 * out.shape[1], forms,
            factors,
        )  # fmt: skip


@njit(nogil=True, cache=True, parallel=True)
def heads_by_chunks(num_key_heads, tiled, qkv, beta, alpha, strides, decay, dt_bias, state, out, forms):
    """Every head over all tokens (mutates `state` and `out`), as `delta_rule._heads`; forms: of row_products."""
    n = state.shape[0]
    for h in prange(n):
        key_head = h % num_key_heads if tiled else h // (n // num_key_heads)
        _head(h, key_head, num_key_heads, qkv, beta, alpha, strides, decay, dt_bias, state, out, forms)
