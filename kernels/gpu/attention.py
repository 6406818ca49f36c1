"""Causal attention over the cache by online softmax: few tokens split over the cache's length, many in one pass.

A *query row* is one token and one query head; the H / G query heads that share key head g and the tokens of a call are
rows r = t * (H / G) + j of the same program, so that keys are read once for all of them. Worked example, T = 2,
H = 4, G = 2: program g = 1 has rows 0: token 0 head 2, 1: token 0 head 3, 2: token 1 head 2, 3: token 1 head 3.
Decoding cuts the visible positions into splits of a fixed length, whose partial results a second launch joins in a
fixed order; results depend on the split length and the window, never on how many programs ran or which tokens came
together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.backend import KVLayer
from kernels.gpu.kv import KIND_OF, read_tile
from kernels.gpu.precision import attention_precision, split_dot
from kernels.gpu.tiling import DECODE_TOKENS, AttentionTile, Device, attention_tile, next_power_of_two
from kernels.gpu.workspace import Fresh


@triton.jit
def _scores(
    q_ptr, k_ptr, q_offsets, r_mask, k_rows, l_mask, head_dim,
    K_KIND: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, D_CHUNKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """q k^T, float32 [BLOCK_R, BLOCK_L], over chunks of the head width."""
    scores = tl.zeros((BLOCK_R, BLOCK_L), tl.float32)
    for chunk in tl.static_range(D_CHUNKS):
        c = chunk * BLOCK_D + tl.arange(0, BLOCK_D)
        c_mask = c < head_dim
        q = tl.load(q_ptr + q_offsets[:, None] + c[None, :], mask=r_mask[:, None] & c_mask[None, :], other=0.0)
        k_mask = c_mask[:, None] & l_mask[None, :]
        k = read_tile(k_ptr, k_rows[None, :], c[:, None], k_mask, head_dim, K_KIND, PRECISION)
        scores = split_dot(q, k, scores, PRECISION)
    return scores


@triton.jit(do_not_specialize=["n_tokens", "window"])
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, start_ptr, sinks_ptr, out_ptr, part_ptr, part_max_ptr, part_sum_ptr,
    n_tokens, num_heads, capacity, head_dim, value_dim, window, scale, stride_q, stride_out,
    HEADS_PER_KV: tl.constexpr, K_KIND: tl.constexpr, V_KIND: tl.constexpr, RING: tl.constexpr, HAS_SINKS: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr, D_CHUNKS: tl.constexpr,
    BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (g, b, s): key head g, query rows b * BLOCK_R.., one split of SPLIT positions: split s; with a window the
    one that it touches whose number is s modulo the programs. SPLIT = 0: all positions.

    Scores are kept in units of ln 2, so that weights are powers of two.
    """
    g, s = tl.program_id(0), tl.program_id(2)
    r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    t, head = r // HEADS_PER_KV, g * HEADS_PER_KV + r % HEADS_PER_KV
    r_mask = t < n_tokens
    start = tl.load(start_ptr)
    position = start + t
    first_t = tl.program_id(1) * BLOCK_R // HEADS_PER_KV
    last_t = tl.minimum((tl.program_id(1) * BLOCK_R + BLOCK_R - 1) // HEADS_PER_KV, n_tokens - 1)
    low, high = 0, start + last_t + 1
    if window > 0:
        low = tl.maximum(start + first_t - window + 1, 0)
    if SPLIT > 0:
        split = s
        if window > 0:
            n_splits = tl.num_programs(2)
            split = low // SPLIT + (s + n_splits - low // SPLIT % n_splits) % n_splits
        low, high = tl.maximum(low, split * SPLIT), tl.minimum(high, split * SPLIT + SPLIT)
    first = low
    low = low // BLOCK_L * BLOCK_L  # tiles lie on fixed borders, so that a token's sums do not depend on its neighbours

    q_offsets = t.to(tl.int64) * stride_q + head * head_dim
    v_columns = tl.arange(0, BLOCK_V)
    v_mask = v_columns < value_dim
    largest = tl.full((BLOCK_R,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_R,), tl.float32)
    acc = tl.zeros((BLOCK_R, BLOCK_V), tl.float32)
    for begin in range(low, high, BLOCK_L):
        p = begin + tl.arange(0, BLOCK_L)
        l_mask = (p >= first) & (p < high)
        rows = g.to(tl.int64) * capacity + (p % capacity if RING else p)
        scores = scale * _scores(
            q_ptr, k_ptr, q_offsets, r_mask, rows, l_mask, head_dim, K_KIND, BLOCK_R, BLOCK_L, BLOCK_D, D_CHUNKS,
            PRECISION,
        )  # fmt: skip
        visible = l_mask[None, :] & (p[None, :] <= position[:, None])
        if window > 0:
            visible &= p[None, :] > position[:, None] - window
        scores = tl.where(visible, scores, -float("inf"))
        tile_max = tl.maximum(largest, tl.max(scores, axis=1))
        # Rows that have seen nothing yet keep -inf; 0 instead of it makes their weights 0 and not NaN.
        shift = tl.where(tile_max == -float("inf"), 0.0, tile_max)
        weights = tl.exp2(scores - shift[:, None])
        kept = tl.exp2(largest - shift)
        lv_mask = l_mask[:, None] & v_mask[None, :]
        v = read_tile(v_ptr, rows[:, None], v_columns[None, :], lv_mask, value_dim, V_KIND, PRECISION)
        acc = split_dot(weights, v, acc * kept[:, None], PRECISION)
        total = total * kept + tl.sum(weights, axis=1)
        largest = tile_max
    o_mask = r_mask[:, None] & v_mask[None, :]
    row = t * num_heads + head
    if SPLIT > 0:
        part = row.to(tl.int64) * tl.num_programs(2) + s
        tl.store(part_max_ptr + part, largest, mask=r_mask)
        tl.store(part_sum_ptr + part, total, mask=r_mask)
        tl.store(part_ptr + part[:, None] * value_dim + v_columns[None, :], acc, mask=o_mask)
    else:
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head, mask=r_mask, other=0.0) * 1.4426950408889634
            with_sink = tl.maximum(largest, sink)
            kept = tl.exp2(largest - with_sink)
            acc, total = acc * kept[:, None], total * kept + tl.exp2(sink - with_sink)
        out = out_ptr + t.to(tl.int64)[:, None] * stride_out + (head * value_dim)[:, None] + v_columns[None, :]
        tl.store(out, acc / total[:, None], mask=o_mask)


@triton.jit(do_not_specialize=["n_splits"])
def _combine_kernel(
    part_ptr, part_max_ptr, part_sum_ptr, sinks_ptr, out_ptr, n_splits, num_heads, value_dim, stride_out,
    HAS_SINKS: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Program (row, b): columns b * BLOCK_V.. of token row / num_heads, head row % num_heads; splits in order."""
    row = tl.program_id(0)
    t, head = row // num_heads, row % num_heads
    columns = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    c_mask = columns < value_dim
    largest = -float("inf")
    if HAS_SINKS:
        largest = tl.load(sinks_ptr + head) * 1.4426950408889634
    total = 1.0 if HAS_SINKS else 0.0
    acc = tl.zeros((BLOCK_V,), tl.float32)
    for begin in range(0, n_splits, BLOCK_S):
        s = begin + tl.arange(0, BLOCK_S)
        s_mask = s < n_splits
        part = row.to(tl.int64) * n_splits + s
        split_max = tl.load(part_max_ptr + part, mask=s_mask, other=-float("inf"))
        new_max = tl.maximum(largest, tl.max(split_max, axis=0))
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
        weights = tl.exp2(split_max - shift)
        kept = tl.exp2(largest - shift)
        values = tl.load(
            part_ptr + part[:, None] * value_dim + columns[None, :], mask=s_mask[:, None] & c_mask[None, :], other=0.0
        )
        acc = acc * kept + tl.sum(values * weights[:, None], axis=0)
        total = total * kept + tl.sum(tl.load(part_sum_ptr + part, mask=s_mask, other=0.0) * weights, axis=0)
        largest = new_max
    out = out_ptr + t.to(tl.int64) * stride_out + head * value_dim + columns
    tl.store(out, acc / total, mask=c_mask)


def split_count(length: int, window: int, split: int) -> int:
    """Programs of `split` positions that few tokens within `length` positions need; with a window (0: none) no more
    than DECODE_TOKENS together can touch, however long the sequence grows.
    """
    whole = -(-length // split)
    return min(whole, (window + DECODE_TOKENS - 3 + split) // split + 1) if window else whole


def attention(
    q: torch.Tensor, cache: KVLayer, start: torch.Tensor, length: int, num_heads: int, scale: float, window: int,
    sinks: torch.Tensor | None, device: Device, memory: Fresh, tile: AttentionTile | None = None,
) -> torch.Tensor:  # fmt: skip
    """softmax(scale * q k^T) v for rotated q [T, H * d] at positions start[0]..: float32 [T, H * dv] in `memory`.

    `start` int32 [1] on the device. `length`: positions that the launch covers, at least start + T; more costs programs
    that find nothing to do, which is how a recorded launch serves growing positions. With a window it costs none.
    """
    n_kv, n_tokens = cache.k.shape[0], q.shape[0]
    head_dim, per_kv = q.shape[1] // num_heads, num_heads // n_kv
    value_dim = cache.v.shape[2] // 34 * 32 if cache.v_dtype == "q8_0" else cache.v.shape[2]
    n_rows = n_tokens * per_kv
    tile = tile or attention_tile(head_dim, n_rows, cache.k.shape[1], device)
    split = tile.split_length if n_tokens <= DECODE_TOKENS else 0
    n_splits = split_count(length, window, split) if split else 1
    out = memory.take((n_tokens, num_heads * value_dim))
    rows = n_tokens * num_heads
    part, part_max, part_sum = out, out, out
    if split:
        part = memory.take((n_tokens, num_heads * n_splits, value_dim))
        part_max, part_sum = (memory.take((n_tokens, num_heads * n_splits)) for _ in range(2))
    no_sinks = out if sinks is None else sinks
    _attention_kernel[(n_kv, triton.cdiv(n_rows, tile.block_r), n_splits)](
        q, cache.k, cache.v, start, no_sinks, out, part, part_max, part_sum,
        n_tokens, num_heads, cache.k.shape[1], head_dim, value_dim, window, scale * 1.4426950408889634,
        q.stride(0), out.stride(0),
        HEADS_PER_KV=per_kv, K_KIND=KIND_OF[cache.k_dtype], V_KIND=KIND_OF[cache.v_dtype], RING=cache.ring,
        HAS_SINKS=sinks is not None, SPLIT=split, BLOCK_R=tile.block_r, BLOCK_L=tile.block_l, BLOCK_D=tile.block_d,
        D_CHUNKS=-(-head_dim // tile.block_d), BLOCK_V=max(next_power_of_two(value_dim), 16),
        PRECISION=attention_precision(device), num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if split:
        block_v = min(next_power_of_two(value_dim), 128)
        _combine_kernel[(rows, -(-value_dim // block_v))](
            part, part_max, part_sum, no_sinks, out, n_splits, num_heads, value_dim, out.stride(0),
            HAS_SINKS=sinks is not None, BLOCK_S=16, BLOCK_V=block_v, num_warps=4,
        )  # fmt: skip
    return out
