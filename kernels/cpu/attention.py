"""Causal attention over the cache: flash-style blocks with an online softmax, for one token and for many.

Work is cut into items that do not depend on the number of threads. One token: an item is one key/value head and CHUNK
positions, so that a long cache is read once by all threads; partial results are merged in position order. Many tokens:
an item is one key/value head and ITEM_ROWS query rows over all positions. All query heads of a group go through a
block together, so each key and value is read from memory once. The inner loops are in attention_rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from kernels.backend import KVLayer
from kernels.cpu.addresses import address
from kernels.cpu.attention_rows import BLOCK, QUERIES, scores_address, softmax_address, values_address
from kernels.cpu.kv_quant import stored_width, unit_of
from kernels.cpu.native_call import call_native

CHUNK = 4 * BLOCK
ITEM_ROWS = 32
_NO_SINKS = np.zeros(0, np.float32)

# Of all calls of one shape: inner loops (addresses), units of a key and a value row, and the shape.
_HEADS = np.dtype(
    [
        *((name, np.int64) for name in ("scores_1", "scores_n", "softmax_1", "softmax_n", "values_1", "values_n")),
        *((name, np.int64) for name in ("k_units", "v_units", "num_heads", "ratio", "head_dim", "value_dim")),
    ]
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all calls over one layer share: `heads` of _HEADS, the scale in a cell, keys and values as uint8."""

    heads: np.ndarray
    scale: np.ndarray
    k: np.ndarray
    v: np.ndarray
    out_width: int

    @classmethod
    def new(cls, cache: KVLayer, q_width: int, num_heads: int, scale: float) -> _Plan:
        """Raises ValueError where the shapes do not fit."""
        num_kv_heads = cache.k.shape[0]
        if num_heads % num_kv_heads or q_width % num_heads:
            raise ValueError(f"attention of q rows of {q_width}, {num_heads} heads, over a cache {cache.k.shape}")
        head_dim, value_dim = q_width // num_heads, stored_width(cache.v, cache.v_dtype)
        k_unit, v_unit = unit_of(head_dim, cache.k_dtype), unit_of(value_dim, cache.v_dtype)
        functions = (
            *(scores_address(n, k_unit, cache.k_dtype) for n in (1, QUERIES)),
            *(softmax_address(n) for n in (1, QUERIES)),
            *(values_address(n, v_unit, cache.v_dtype) for n in (1, QUERIES)),
        )
        shape = (num_heads, num_heads // num_kv_heads, head_dim, value_dim)
        heads = np.array([(*functions, head_dim // k_unit, value_dim // v_unit, *shape)], _HEADS)
        views = cache.k.view(np.uint8), cache.v.view(np.uint8)
        return cls(heads, np.full(1, scale, np.float32), *views, num_heads * value_dim)


@njit(nogil=True, cache=True)
def _earliest(position, window):
    """First cache position that the query at `position` sees."""
    return max(0, position - window + 1) if window > 0 else 0


@njit(nogil=True, cache=True)
def _block(call, scale, keys, values, n_positions, weights, q, out, states, visible):
    """Add one block to the running result of len(q) <= QUERIES query rows.

    keys, values: (address, row bytes) of the block's first position; visible int64 [n, 2]: first and stop position of
    each row, counted from there; q, out, states: addresses of each row.
    """
    n, w, seen, at = q.shape[0], weights.ctypes.data, visible.ctypes.data, scale.ctypes.data
    if n == QUERIES:
        s = (states[0], states[1], states[2], states[3])
        call_native(call.scores_n, keys[0], keys[1], n_positions, call.k_units, at, w, q[0], q[1], q[2], q[3])
        call_native(call.softmax_n, w, seen, s[0], s[1], s[2], s[3])
        call_native(
            call.values_n, w, values[0], values[1], n_positions, call.v_units,
            s[0] + 8, s[1] + 8, s[2] + 8, s[3] + 8, out[0], out[1], out[2], out[3],
        )  # fmt: skip
        return
    for i in range(n):
        call_native(call.scores_1, keys[0], keys[1], n_positions, call.k_units, at, w, q[i])
        call_native(call.softmax_1, w, seen + 16 * i, states[i])
        call_native(call.values_1, w, values[0], values[1], n_positions, call.v_units, states[i] + 8, out[i])


@njit(nogil=True, cache=True)
def _start_rows(call, g, rows, sinks, out, states):
    """Empty running results; a sink is a weight of e^sink that has no value."""
    for m in range(rows[0], rows[1]):
        t, h = m // call.ratio, g * call.ratio + m % call.ratio
        out[t, h * call.value_dim : (h + 1) * call.value_dim] = 0.0
        states[t, h, 0] = sinks[h] if sinks.shape[0] else -np.inf
        states[t, h, 1] = 1.0 if sinks.shape[0] else 0.0


@njit(nogil=True, cache=True)
def _attend_rows(call, at, scale, cache_k, cache_v, g, rows, positions, out, states):
    """Query rows rows[0]..rows[1]-1 of key head g over `positions`; row m is token m // ratio, head m % ratio of g."""
    start, window, q, q_stride = at
    capacity, k_bytes, v_bytes = cache_k.shape[1], cache_k.shape[2], cache_v.shape[2]
    k_base = cache_k.ctypes.data + g * capacity * k_bytes
    v_base = cache_v.ctypes.data + g * capacity * v_bytes
    weights = np.empty((QUERIES, BLOCK), np.float32)
    places = np.empty((3, QUERIES), np.int64)
    visible = np.empty((QUERIES, 2), np.int64)
    for first in range(positions[0], positions[1], BLOCK):
        for m in range(rows[0], rows[1], QUERIES):
            n = min(QUERIES, rows[1] - m)
            n_positions = min(BLOCK, start + (m + n - 1) // call.ratio + 1 - first)
            if n_positions <= 0 or first + BLOCK <= _earliest(start + m // call.ratio, window):
                continue
            for i in range(n):
                t, h = (m + i) // call.ratio, g * call.ratio + (m + i) % call.ratio
                visible[i, 0] = _earliest(start + t, window) - first
                visible[i, 1] = start + t + 1 - first
                places[0, i] = q + t * q_stride + 4 * h * call.head_dim
                places[1, i] = out.ctypes.data + 4 * (t * call.num_heads + h) * call.value_dim
                places[2, i] = states.ctypes.data + 12 * (t * call.num_heads + h)
            place = first % capacity  # a block is whole in a ring too
            keys, values = (k_base + place * k_bytes, k_bytes), (v_base + place * v_bytes, v_bytes)
            _block(
                call, scale, keys, values, n_positions, weights, places[0, :n], places[1, :n], places[2, :n], visible
            )


@njit(nogil=True, cache=True, error_model="numpy")
def _divide(call, g, rows, out, states):
    for m in range(rows[0], rows[1]):
        t, h = m // call.ratio, g * call.ratio + m % call.ratio
        for i in range(h * call.value_dim, (h + 1) * call.value_dim):
            out[t, i] /= states[t, h, 1]


@njit(nogil=True, cache=True)
def _attend_item(call, at, scale, cache_k, cache_v, sinks, g, tile, n_tiles, c, first, n_chunks, out, states):
    """Tile `tile` of the query rows of key head g over chunk c, which starts at position `first`."""
    n_rows, stop = out.shape[0] * call.ratio, at[0] + out.shape[0]
    rows = (tile * ITEM_ROWS, min(n_rows, (tile + 1) * ITEM_ROWS)) if n_tiles > 1 else (0, n_rows)
    _start_rows(call, g, rows, sinks if c == 0 else sinks[:0], out, states)
    if n_chunks > 1:
        stop = min(stop, first + CHUNK)
    _attend_rows(call, at, scale, cache_k, cache_v, g, rows, (first, stop), out, states)
    if n_chunks == 1:
        _divide(call, g, rows, out, states)


@njit(nogil=True, cache=True, parallel=True)
def _attend(heads, q, start, window, scale, cache_k, cache_v, sinks, n_tiles, first_position, out, states):
    """out float32 [n_chunks, T, H * dv], states float32 [n_chunks, T, H, 3]; with one chunk `out` is final."""
    n_chunks = out.shape[0]
    per_head = n_tiles * n_chunks
    for item in prange(cache_k.shape[0] * per_head):
        g, rest = item // per_head, item % per_head
        c = rest // n_tiles
        first = first_position + c * CHUNK
        at = (start, window, address(q), 4 * q.shape[1])
        _attend_item(
            heads[0], at, scale, cache_k, cache_v, sinks, g, rest % n_tiles, n_tiles, c, first, n_chunks, out[c],
            states[c],
        )  # fmt: skip


@njit(nogil=True, cache=True, error_model="numpy")
def _merge(parts, states, out):
    """The chunks' results [n_chunks, H, dv] of one token, rescaled to the largest score and added in position order."""
    n_chunks, num_heads, width = parts.shape
    for h in range(num_heads):
        largest, total = -np.inf, 0.0
        for c in range(n_chunks):
            largest = max(largest, np.float64(states[c, h, 0]))
        row = out[h]
        row[:] = 0.0
        for c in range(n_chunks):
            factor = math.exp(states[c, h, 0] - largest)
            total += factor * states[c, h, 1]
            weight, part = np.float32(factor), parts[c, h]
            for i in range(width):
                row[i] += weight * part[i]
        for i in range(width):
            row[i] /= np.float32(total)


def attention(
    q: np.ndarray,
    cache: KVLayer,
    start: int,
    num_heads: int,
    scale: float,
    window: int = 0,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """softmax(scale * q k^T) v of rotated float32 q [T, H * d] at positions start..: fresh float32 [T, H * dv].

    Position p sees cache positions max(0, p - window + 1)..p, or 0..p where window is 0. `sinks` float32 [H] adds
    e^sink to each head's sum of weights. Query rows may lie apart. Raises ValueError where the shapes do not fit.
    """
    n_tokens, q_width = q.shape
    n_needed = n_tokens + (max(window, 1) - 1 if cache.ring else start)
    if n_needed > cache.k.shape[1] or (cache.ring and not window):
        raise ValueError(f"attention of q {q.shape}, {num_heads} heads at {start}, over a cache {cache.k.shape}")
    key = ("attention", q_width, num_heads, scale)
    plan = cache.plans.get(key)
    if plan is None:
        plan = cache.plans[key] = _Plan.new(cache, q_width, num_heads, scale)
    first_position = max(0, start - window + 1) // CHUNK * CHUNK if window > 0 else 0
    n_chunks = -(-(start + 1 - first_position) // CHUNK) if n_tokens == 1 else 1
    n_tiles = 1 if n_tokens == 1 else -(-n_tokens * (num_heads // cache.k.shape[0]) // ITEM_ROWS)
    parts = np.empty((n_chunks, n_tokens, plan.out_width), np.float32)
    states = np.empty((n_chunks, n_tokens, num_heads, 3), np.float32)
    sinks = _NO_SINKS if sinks is None else sinks
    if not q.flags.c_contiguous:
        q = np.ascontiguousarray(q)
    _attend(
        plan.heads, q, start, window, plan.scale, plan.k, plan.v, sinks, n_tiles, first_position, parts, states
    )
    if n_chunks == 1:
        return parts[0]
    out = np.empty((1, plan.out_width), np.float32)
    _merge(parts.reshape(n_chunks, num_heads, -1), states[:, 0], out.reshape(num_heads, -1))
    return out
