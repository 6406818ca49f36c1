"""The gated delta rule, token by token: each head's matrix stays in cache while all tokens of a call go over it.
Prompts go by chunks (delta_chunks.py).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from kernels.cpu.delta_chunks import MIN_TOKENS, heads_by_chunks
from kernels.cpu.delta_gates import kept_of, rate_of, unit
from kernels.cpu.float_rows import float_row
from kernels.cpu.recycled import new_rows
from kernels.cpu.row_products import row_products_addresses
from kernels.delta_rule import DeltaRule


@njit(nogil=True, cache=True)
def _recall(memory, k, q, recalled, read):
    """recalled = memory^T k, read = memory^T q. Four rows at a time, so that sums are loaded and stored less often."""
    n = memory.shape[0]
    recalled[:] = 0.0
    read[:] = 0.0
    for i in range(0, n // 4 * 4, 4):
        a, b, c, d = memory[i], memory[i + 1], memory[i + 2], memory[i + 3]
        ka, kb, kc, kd = k[i], k[i + 1], k[i + 2], k[i + 3]
        qa, qb, qc, qd = q[i], q[i + 1], q[i + 2], q[i + 3]
        for j in range(recalled.shape[0]):
            recalled[j] += (ka * a[j] + kb * b[j]) + (kc * c[j] + kd * d[j])
            read[j] += (qa * a[j] + qb * b[j]) + (qc * c[j] + qd * d[j])
    for i in range(n // 4 * 4, n):
        for j in range(recalled.shape[0]):
            recalled[j] += k[i] * memory[i, j]
            read[j] += q[i] * memory[i, j]


@njit(nogil=True, cache=True)
def _update(memory, k, q, v, rate, kept, recalled, read, out):
    """One token of one head. With S' = kept * S: S' + k delta^T is left, and read^T of it is S'^T q + (k.q) delta."""
    _recall(memory, k, q, recalled, read)
    overlap = np.float32(0.0)
    for i in range(k.shape[0]):
        overlap += k[i] * q[i]
    for j in range(v.shape[0]):
        delta = rate * (v[j] - kept * recalled[j])
        out[j] = kept * read[j] + overlap * delta
        recalled[j] = delta
    for i in range(k.shape[0]):
        row, key = memory[i], k[i]
        for j in range(row.shape[0]):
            row[j] = kept * row[j] + key * recalled[j]


@njit(nogil=True, cache=True)
def _head(h, key_head, num_key_heads, qkv, beta, alpha, strides, decay, dt_bias, state, out):
    """All tokens of value head h; qkv, beta, alpha: addresses of the first rows, `strides` apart."""
    key_dim, value_dim = state.shape[1:]
    q, k = np.empty(key_dim, np.float32), np.empty(key_dim, np.float32)
    recalled, read = np.empty(value_dim, np.float32), np.empty(value_dim, np.float32)
    for t in range(out.shape[0]):
        row = qkv + t * strides[0]
        q_at, k_at = key_head * key_dim, (num_key_heads + key_head) * key_dim
        v_at = 2 * num_key_heads * key_dim + h * value_dim
        unit(float_row(row + 4 * q_at, key_dim), 1.0 / math.sqrt(key_dim), q)
        unit(float_row(row + 4 * k_at, key_dim), 1.0, k)
        rate = rate_of(float_row(beta + t * strides[1], h + 1)[h])
        kept = kept_of(float_row(alpha + t * strides[2], h + 1)[h], decay[h], dt_bias[h])
        v, mixed = float_row(row + 4 * v_at, value_dim), out[t, h * value_dim : (h + 1) * value_dim]
        _update(state[h], k, q, v, rate, kept, recalled, read, mixed)


@njit(nogil=True, cache=True, parallel=True)
def _heads(num_key_heads, tiled, qkv, beta, alpha, strides, decay, dt_bias, state, out):
    n = state.shape[0]
    for h in prange(n):
        key_head = h % num_key_heads if tiled else h // (n // num_key_heads)
        _head(h, key_head, num_key_heads, qkv, beta, alpha, strides, decay, dt_bias, state, out)


def delta_rule(
    qkv: np.ndarray, beta: np.ndarray, alpha: np.ndarray, rule: DeltaRule, state: np.ndarray
) -> np.ndarray:
    """See `Backend.delta_rule`: fresh float32 [T, H * dv]; mutates `state`.

    Raises ValueError for shapes that do not fit each other.
    """
    heads, n_tokens = rule.num_heads, qkv.shape[0]
    width = 2 * rule.num_key_heads * rule.key_dim + heads * rule.value_dim
    if qkv.shape[1] != width or beta.shape != (n_tokens, heads) or alpha.shape != (n_tokens, heads):
        raise ValueError(f"a delta rule of {heads} heads over rows {qkv.shape} with gates {beta.shape}, {alpha.shape}")
    if state.shape != (heads, rule.key_dim, rule.value_dim) or not state.flags.c_contiguous:
        raise ValueError(f"a delta rule of {heads} heads with a state {state.shape}")
    if any(rows.strides[1] != 4 for rows in (qkv, beta, alpha)):
        raise ValueError("the delta rule reads rows of contiguous float32")
    out = new_rows(n_tokens, heads * rule.value_dim)
    rows = (qkv.ctypes.data, beta.ctypes.data, alpha.ctypes.data)
    strides = (qkv.strides[0], beta.strides[0], alpha.strides[0])
    arguments = (rule.num_key_heads, rule.tiled, *rows, strides, rule.decay, rule.dt_bias, state, out)
    if n_tokens < MIN_TOKENS:
        _heads(*arguments)
    else:
        heads_by_chunks(*arguments, row_products_addresses())
    return out
