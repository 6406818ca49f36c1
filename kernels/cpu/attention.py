"""Causal attention over the cache: flash-style blocks with an online softmax, for one token and for many.

Work is cut into items that do not depend on the number of threads. One token: an item is one key/value head and a chunk
of positions, so that a long cache is read once by all threads; partial results are merged in position order. Many
tokens: an item is one key/value head and ITEM_ROWS query rows over all positions. All query heads of a group go through
a block together, so each key and value is read from memory once. The inner loops are in attention_rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from kernels.backend import KVLayer
from kernels.cpu.addresses import address
from kernels.cpu.attention_rows import (
    SIZES,
    pack_address,
    packed_row_bytes,
    scores_address,
    softmax_address,
    values_address,
)
from kernels.cpu.attention_values import BLOCK
from kernels.cpu.float_math import LOG2_E
from kernels.cpu.kv_quant import stored_width, unit_of
from kernels.cpu.native_call import call_native
from kernels.cpu.recycled import FLOATS, new_rows

CHUNK, LONGEST_CHUNK, CHUNKS = 4 * BLOCK, 16 * BLOCK, 8
"""Positions of a chunk, at least and at most, and how many chunks a key head of a long cache has about: what a chunk
costs beside its positions is that of some twenty, and 8 of a few heads are work enough for many threads."""
ITEM_ROWS = 32
_NO_SINKS = np.zeros(0, np.float32)

# Of all calls of one shape: units of a key and a value row, bytes of a packed query row, and the shape.
_FIELDS = ("k_units", "v_units", "packed_bytes", "num_heads", "ratio", "head_dim", "value_dim")
_HEADS = np.dtype([(name, np.int64) for name in _FIELDS])


def group_sizes(ratio: int, n_tokens: int) -> tuple[int, ...]:
    """Numbers of query rows that go through a block together, largest first, for `ratio` heads a key head.

    Their greedy split covers the rows of one token, or, with more, any multiple of `ratio`: each is compiled, so there
    are no others.
    """
    sizes, rest = set(), ratio
    for size in SIZES:
        if rest >= size:
            sizes.add(size)
        rest %= size
    if n_tokens > 1:
        sizes |= {SIZES[0], math.gcd(ratio, SIZES[0])}
    return tuple(sorted(sizes, reverse=True))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all calls over one layer with one or with many tokens share: `heads` of _HEADS, inner loops (size and
    addresses of pack, scores, softmax, values; a row a group size), in a cell the scale times LOG2_E, since softmax
    takes powers of two, keys and values as uint8."""

    heads: np.ndarray
    loops: np.ndarray
    scale: np.ndarray
    k: np.ndarray
    v: np.ndarray
    out_width: int

    @classmethod
    def new(cls, cache: KVLayer, q_width: int, num_heads: int, scale: float, n_tokens: int) -> _Plan:
        """Raises ValueError where the shapes do not fit."""
        num_kv_heads = cache.k.shape[0]
        if num_heads % num_kv_heads or q_width % num_heads:
            raise ValueError(f"attention of q rows of {q_width}, {num_heads} heads, over a cache {cache.k.shape}")
        ratio, head_dim = num_heads // num_kv_heads, q_width // num_heads
        value_dim = stored_width(cache.v, cache.v_dtype)
        k_unit, v_unit = unit_of(head_dim, cache.k_dtype), unit_of(value_dim, cache.v_dtype)
        loops = [
            (
                n,
                pack_address(n, k_unit, cache.k_dtype),
                scores_address(n, k_unit, cache.k_dtype),
                softmax_address(n),
                values_address(n, v_unit, cache.v_dtype),
            )
            for n in group_sizes(ratio, n_tokens)
        ]
        units = head_dim // k_unit, value_dim // v_unit
        heads = np.array([(*units, packed_row_bytes(head_dim), num_heads, ratio, head_dim, value_dim)], _HEADS)
        views = cache.k.view(np.uint8), cache.v.view(np.uint8)
        power_scale = np.full(1, scale * LOG2_E, np.float32)
        return cls(heads, np.array(loops, np.int64), power_scale, *views, num_heads * value_dim)


def chunk_positions(n_positions: int) -> int:
    """Positions of a chunk of one token over n_positions."""
    return min(max(CHUNK, n_positions // CHUNKS // BLOCK * BLOCK), LONGEST_CHUNK)


@njit(nogil=True, cache=True)
def _earliest(position, window):
    """First cache position that the query at `position` sees."""
    return max(0, position - window + 1) if window > 0 else 0


@njit(nogil=True, cache=True)
def _start_rows(call, g, rows, sinks, out, states):
    """Empty running results; a sink is a weight of e^sink (2 to the power of it times LOG2_E) that has no value."""
    for m in range(rows[0], rows[1]):
        t, h = m // call.ratio, g * call.ratio + m % call.ratio
        out[t, h * call.value_dim : (h + 1) * call.value_dim] = 0.0
        states[t, h, 0] = sinks[h] * LOG2_E if sinks.shape[0] else -np.inf
        states[t, h, 1] = 1.0 if sinks.shape[0] else 0.0


@njit(nogil=True, cache=True)
def _groups(loops, n_rows):
    """n_rows query rows cut into groups of the sizes in `loops`: int64 [n, 3] of row of `loops`, first row, rows."""
    groups = np.empty((n_rows, 3), np.int64)
    n_groups, size, m = 0, 0, 0
    while m < n_rows:
        while loops[size, 0] > n_rows - m:
            size += 1
        groups[n_groups, 0], groups[n_groups, 1], groups[n_groups, 2] = size, m, loops[size, 0]
        m += loops[size, 0]
        n_groups += 1
    return groups[:n_groups]


@njit(nogil=True, cache=True)
def _places(call, at, g, rows, out, states):
    """int64 [4, n_rows] of query rows rows[0]..rows[1]-1 of key head g: addresses of q, state and out, and position;
    row m is token m // ratio, head m % ratio of g."""
    start, _, q, q_stride = at
    places = np.empty((4, rows[1] - rows[0]), np.int64)
    for i in range(rows[1] - rows[0]):
        t, h = (rows[0] + i) // call.ratio, g * call.ratio + (rows[0] + i) % call.ratio
        places[0, i] = q + t * q_stride + 4 * h * call.head_dim
        places[1, i] = states.ctypes.data + 12 * (t * call.num_heads + h)
        places[2, i] = out.ctypes.data + 4 * (t * call.num_heads + h) * call.value_dim
        places[3, i] = start + t
    return places


@njit(nogil=True, cache=True)
def _attend_rows(call, loops, at, scale, cache_k, cache_v, g, rows, positions, out, states):
    """Query rows rows[0]..rows[1]-1 of key head g over `positions`, group by group in each block."""
    window, n_rows = at[1], rows[1] - rows[0]
    capacity, k_bytes, v_bytes = cache_k.shape[1], cache_k.shape[2], cache_v.shape[2]
    k_base = cache_k.ctypes.data + g * capacity * k_bytes
    v_base = cache_v.ctypes.data + g * capacity * v_bytes
    groups, places = _groups(loops, n_rows), _places(call, at, g, rows, out, states)
    packed = np.empty(n_rows * call.packed_bytes, np.uint8)
    weights = np.empty(BLOCK * loops[0, 0], np.float32)
    visible = np.empty(2 * loops[0, 0], np.int32)
    w, q_at = weights.ctypes.data, places.ctypes.data
    state_at, out_at, position = q_at + 8 * n_rows, q_at + 16 * n_rows, places[3]
    for i in range(groups.shape[0]):
        m = groups[i, 1]
        call_native(loops[groups[i, 0], 1], q_at + 8 * m, call.k_units, packed.ctypes.data + m * call.packed_bytes)
    for first in range(positions[0], positions[1], BLOCK):
        place = first % capacity  # a block is whole in a ring too
        keys, values = k_base + place * k_bytes, v_base + place * v_bytes
        for i in range(groups.shape[0]):
            size, m, n = groups[i, 0], groups[i, 1], groups[i, 2]
            n_positions = min(BLOCK, position[m + n - 1] + 1 - first)
            if n_positions <= 0 or first + BLOCK <= _earliest(position[m], window):
                continue
            for j in range(n):
                visible[j] = max(0, _earliest(position[m + j], window) - first)
                visible[n + j] = max(0, position[m + j] + 1 - first)
            call_native(
                loops[size, 2], keys, k_bytes, n_positions, call.k_units, scale.ctypes.data,
                packed.ctypes.data + m * call.packed_bytes, w,
            )  # fmt: skip
            call_native(loops[size, 3], w, visible.ctypes.data, state_at + 8 * m)
            call_native(loops[size, 4], w, values, v_bytes, n_positions, call.v_units, state_at + 8 * m, out_at + 8 * m)


@njit(nogil=True, cache=True, error_model="numpy")
def _divide(call, g, rows, out, states):
    for m in range(rows[0], rows[1]):
        t, h = m // call.ratio, g * call.ratio + m % call.ratio
        for i in range(h * call.value_dim, (h + 1) * call.value_dim):
            out[t, i] /= states[t, h, 1]


@njit(nogil=True, cache=True)
def _attend_item(call, loops, at, scale, cache_k, cache_v, sinks, g, tile, n_tiles, c, span, n_chunks, out, states):
    """Tile `tile` of the query rows of key head g over chunk c; span: first position of all, positions of a chunk."""
    n_rows, stop = out.shape[0] * call.ratio, at[0] + out.shape[0]
    rows = (tile * ITEM_ROWS, min(n_rows, (tile + 1) * ITEM_ROWS)) if n_tiles > 1 else (0, n_rows)
    _start_rows(call, g, rows, sinks if c == 0 else sinks[:0], out, states)
    first = span[0] + c * span[1]
    if n_chunks > 1:
        stop = min(stop, first + span[1])
    _attend_rows(call, loops, at, scale, cache_k, cache_v, g, rows, (first, stop), out, states)
    if n_chunks == 1:
        _divide(call, g, rows, out, states)


@njit(nogil=True, cache=True, parallel=True)
def _attend(heads, loops, q, start, window, scale, cache_k, cache_v, sinks, n_tiles, span, out, states):
    """out float32 [n_chunks, T, H * dv], states float32 [n_chunks, T, H, 3]; with one chunk `out` is final."""
    n_chunks = out.shape[0]
    per_head = n_tiles * n_chunks
    for item in prange(cache_k.shape[0] * per_head):
        g, rest = item // per_head, item % per_head
        c = rest // n_tiles
        at = (start, window, address(q), 4 * q.shape[1])
        _attend_item(
            heads[0], loops, at, scale, cache_k, cache_v, sinks, g, rest % n_tiles, n_tiles, c, span, n_chunks, out[c],
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
            factor = 2.0 ** (states[c, h, 0] - largest)
            total += factor * states[c, h, 1]
            weight, part = np.float32(factor), parts[c, h]
            for i in range(width):
                row[i] += weight * part[i]
        for i in range(width):
            row[i] /= np.float32(total)


def _partial_results(n_chunks: int, n_tokens: int, out_width: int, num_heads: int) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n_chunks, T, H * dv] and [n_chunks, T, H, 3]; for one token out of memory for twice as many chunks."""
    if n_tokens > 1:
        states = np.empty((n_chunks, n_tokens, num_heads, 3), np.float32)
        return np.empty((n_chunks, n_tokens, out_width), np.float32), states
    room = 1 << (n_chunks - 1).bit_length()
    return FLOATS.take(room, 1, out_width)[:n_chunks], FLOATS.take(room, 1, num_heads, 3)[:n_chunks]


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
    key = ("attention", q_width, num_heads, scale, n_tokens > 1)
    plan = cache.plans.get(key)
    if plan is None:
        plan = cache.plans[key] = _Plan.new(cache, q_width, num_heads, scale, n_tokens)
    first_position = max(0, start - window + 1) // CHUNK * CHUNK if window > 0 else 0
    span = first_position, chunk_positions(start + 1 - first_position)
    n_chunks = -(-(start + 1 - first_position) // span[1]) if n_tokens == 1 else 1
    n_tiles = 1 if n_tokens == 1 else -(-n_tokens * (num_heads // cache.k.shape[0]) // ITEM_ROWS)
    parts, states = _partial_results(n_chunks, n_tokens, plan.out_width, num_heads)
    sinks = _NO_SINKS if sinks is None else sinks
    if not q.flags.c_contiguous:
        q = np.ascontiguousarray(q)
    _attend(plan.heads, plan.loops, q, start, window, plan.scale, plan.k, plan.v, sinks, n_tiles, span, parts, states)
    if n_chunks == 1:
        return parts[0]
    out = new_rows(1, plan.out_width)
    _merge(parts.reshape(n_chunks, num_heads, -1), states[:, 0], out.reshape(num_heads, -1))
    return out
