"""Rotary position embedding of queries and keys, and the write of keys and values into the cache, in one call."""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit, prange

from kernels.backend import KVLayer, RopeTable
from kernels.cpu.float_rows import float_row
from kernels.cpu.kv_quant import store_address, unit_of
from kernels.cpu.native_call import call_native

SERIAL_TOKENS = 4
"""Up to this many rows one thread is faster than waking the others."""

_store_address = cache(store_address)

# One call's numbers: where the rows lie, widths of a head, steps of the row loops, the store functions, the rotation.
_CALL = np.dtype(
    [
        *((name, np.int64) for name in ("q", "q_stride", "q_width", "k", "k_stride", "v", "v_stride")),
        *((name, np.int64) for name in ("head_dim", "value_dim", "k_unit", "v_unit", "store_k", "store_v")),
        *((name, np.int64) for name in ("n_rot", "interleaved", "start")),
    ]
)


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
    place = cache.ctypes.data + position * row_bytes
    for g in range(num_heads):
        call_native(store, row_address + 4 * g * width, place + g * capacity * row_bytes, width // unit)


@njit(nogil=True, cache=True)
def _token(t, call, cos, sin, cache_k, cache_v):
    position, k_row = call.start + t, call.k + t * call.k_stride
    turned, interleaved = (cos[position], sin[position]), call.interleaved != 0
    for row, width in ((call.q + t * call.q_stride, call.q_width), (k_row, cache_k.shape[0] * call.head_dim)):
        _rotate(float_row(row, width), call.head_dim, call.n_rot, interleaved, turned[0], turned[1])
    _store_heads(k_row, call.head_dim, call.k_unit, call.store_k, cache_k, position)
    _store_heads(call.v + t * call.v_stride, call.value_dim, call.v_unit, call.store_v, cache_v, position)


@njit(nogil=True, cache=True)
def _tokens_serial(n_tokens, calls, cos, sin, cache_k, cache_v):
    for t in range(n_tokens):
        _token(t, calls[0], cos, sin, cache_k, cache_v)


@njit(nogil=True, cache=True, parallel=True)
def _tokens_parallel(n_tokens, calls, cos, sin, cache_k, cache_v):
    for t in prange(n_tokens):
        _token(t, calls[0], cos, sin, cache_k, cache_v)


def rope_write(q: np.ndarray, k: np.ndarray, v: np.ndarray, rope: RopeTable, start: int, cache: KVLayer) -> None:
    """Rotate float32 q [T, H * d] and k [T, G * d] in place for positions start.. and store k and v [T, G * dv] there.

    Rows may lie apart, each row itself is contiguous. Raises ValueError past the end of the table or the cache.
    """
    n_tokens, num_kv_heads, capacity = q.shape[0], cache.k.shape[0], cache.k.shape[1]
    if start + n_tokens > min(capacity, rope.cos.shape[0]):
        raise ValueError(
            f"positions up to {start + n_tokens} in a KV cache of {capacity}, rope table of {rope.cos.shape[0]}"
        )
    head_dim, value_dim = k.shape[1] // num_kv_heads, v.shape[1] // num_kv_heads
    k_unit, v_unit = unit_of(head_dim, cache.dtype), unit_of(value_dim, cache.dtype)
    stores = _store_address(k_unit, cache.dtype), _store_address(v_unit, cache.dtype)
    rows = (q.ctypes.data, q.strides[0], q.shape[1], k.ctypes.data, k.strides[0], v.ctypes.data, v.strides[0])
    call = (*rows, head_dim, value_dim, k_unit, v_unit, *stores, rope.n_rot, rope.interleaved, start)
    tokens = _tokens_serial if n_tokens <= SERIAL_TOKENS else _tokens_parallel
    tokens(n_tokens, np.array([call], _CALL), rope.cos, rope.sin, cache.k.view(np.uint8), cache.v.view(np.uint8))
