"""Rotary position embedding of queries and keys, and the write of keys and values into the cache, in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from kernels.backend import KVLayer, RopeTable
from kernels.cpu.addresses import address
from kernels.cpu.float_rows import float_row
from kernels.cpu.kv_quant import store_address, unit_of
from kernels.cpu.native_call import call_native

# Of all calls of one shape: widths of a head, steps of the row loops, the store functions, the rotation.
_HEADS = np.dtype(
    [
        (name, np.int64)
        for name in ("head_dim", "value_dim", "k_unit", "v_unit", "store_k", "store_v", "n_rot", "interleaved")
    ]
)


def _new_plan(cache: KVLayer, k_width: int, v_width: int, rope: RopeTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(heads of _HEADS, keys and values of `cache` as uint8): what all calls over one layer share."""
    num_kv_heads = cache.k.shape[0]
    head_dim, value_dim = k_width // num_kv_heads, v_width // num_kv_heads
    k_unit, v_unit = unit_of(head_dim, cache.k_dtype), unit_of(value_dim, cache.v_dtype)
    stores = store_address(k_unit, cache.k_dtype), store_address(v_unit, cache.v_dtype)
    heads = np.array([(head_dim, value_dim, k_unit, v_unit, *stores, rope.n_rot, rope.interleaved)], _HEADS)
    return heads, cache.k.view(np.uint8), cache.v.view(np.uint8)


@njit(nogil=True, cache=True)
def _rotate(row, head_dim, n_rot, interleaved, cos, sin):
    """Turn the first n_rot components of each head of a float32 row, in place."""
    half = n_rot // 2
    for first in range(0, row.shape[0], head_dim):
        if interleaved:
            for i in range(half):
                x, y = row[first + 2 * i], row[first + 2 * i + 1]
                row[first + 2 * i] = x * cos[i] - y * sin[i]
                row[first + 2 * i + 1] = y * cos[i] + x * sin[i]
        else:
            low, high = row[first : first + half], row[first + half : first + n_rot]
            for i in range(half):
                x, y = low[i], high[i]
                low[i] = x * cos[i] - y * sin[i]
                high[i] = y * cos[i] + x * sin[i]


@njit(nogil=True, cache=True)
def _store_heads(row_address, width, unit, store, cache, position):
    """Write a float32 row of heads at `position` of `cache`, uint8 [G, capacity, row bytes]."""
    num_heads, capacity, row_bytes = cache.shape
    place = cache.ctypes.data + position % capacity * row_bytes
    for g in range(num_heads):
        call_native(store, row_address + 4 * g * width, place + g * capacity * row_bytes, width // unit)


@njit(nogil=True, cache=True)
def _token(q, q_width, k, v, position, heads, cos, sin, cache_k, cache_v):
    """q, k, v: addresses of one token's rows."""
    turned, interleaved = (cos[position], sin[position]), heads.interleaved != 0
    for row, width in ((q, q_width), (k, cache_k.shape[0] * heads.head_dim)):
        _rotate(float_row(row, width), heads.head_dim, heads.n_rot, interleaved, turned[0], turned[1])
    _store_heads(k, heads.head_dim, heads.k_unit, heads.store_k, cache_k, position)
    _store_heads(v, heads.value_dim, heads.v_unit, heads.store_v, cache_v, position)


@njit(nogil=True, cache=True)
def _one_token(q, k, v, position, heads, cos, sin, cache_k, cache_v):
    _token(address(q), q.shape[1], address(k), address(v), position, heads[0], cos, sin, cache_k, cache_v)


@njit(nogil=True, cache=True, parallel=True)
def _tokens(n_tokens, q_width, rows, strides, start, heads, cos, sin, cache_k, cache_v):
    """rows, strides: addresses of the first q, k and v row, and how far apart rows lie."""
    for t in prange(n_tokens):
        q, k, v = rows[0] + t * strides[0], rows[1] + t * strides[1], rows[2] + t * strides[2]
        _token(q, q_width, k, v, start + t, heads[0], cos, sin, cache_k, cache_v)


def rope_write(q: np.ndarray, k: np.ndarray, v: np.ndarray, rope: RopeTable, start: int, cache: KVLayer) -> None:
    """Rotate float32 q [T, H * d] and k [T, G * d] in place for positions start.. and store k and v [T, G * dv] there.

    Rows may lie apart, each row itself is contiguous. Raises ValueError past the end of the table or the cache.
    """
    n_tokens, capacity = q.shape[0], cache.k.shape[1]
    if start + n_tokens > rope.cos.shape[0] or (0 if cache.ring else start) + n_tokens > capacity:
        raise ValueError(
            f"positions up to {start + n_tokens} in a KV cache of {capacity}, rope table of {rope.cos.shape[0]}"
        )
    key: tuple[Any, ...] = ("rope_write", k.shape[1], v.shape[1], rope.n_rot, rope.interleaved)
    plan = cache.plans.get(key)
    if plan is None:
        plan = cache.plans[key] = _new_plan(cache, k.shape[1], v.shape[1], rope)
    heads, cache_k, cache_v = plan
    if n_tokens == 1:
        _one_token(q, k, v, start, heads, rope.cos, rope.sin, cache_k, cache_v)
        return
    places = (heads, rope.cos, rope.sin, cache_k, cache_v)
    rows = (q.ctypes.data, k.ctypes.data, v.ctypes.data)
    _tokens(n_tokens, q.shape[1], rows, (q.strides[0], k.strides[0], v.strides[0]), start, *places)
