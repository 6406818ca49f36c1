"""Rotate queries and keys in place and write keys and values into the cache, in one launch.

Programs: one for each (token, query head), then one for each (token, key/value head). A key program reads its head
twice, once as it is and once with each component's partner, since the cache is written in natural order: a q8_0 block
may hold both ends of a pair.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.backend import KVLayer, RopeTable
from kernels.gpu.kv import KIND_OF, Q8_0_CACHE, write_block
from kernels.gpu.tiling import next_power_of_two


@triton.jit
def _rotated(head_ptr, cos_ptr, sin_ptr, position, width, N_ROT: tl.constexpr, INTERLEAVED: tl.constexpr, c):
    """Components `c` of one head, turned: x[c] cos - x[partner] sin for the first of a pair, + for the second."""
    half: tl.constexpr = N_ROT // 2
    if INTERLEAVED:
        first, pair = c % 2 == 0, c // 2
        partner = tl.where(first, c + 1, c - 1)
    else:
        first, pair = c < half, c % half
        partner = tl.where(first, c + half, c - half)
    inside, turns = c < width, c < N_ROT
    x = tl.load(head_ptr + c, mask=inside, other=0.0)
    other = tl.load(head_ptr + partner, mask=turns, other=0.0)
    angle = position.to(tl.int64) * half + pair
    cos = tl.load(cos_ptr + angle, mask=turns, other=1.0)
    sin = tl.load(sin_ptr + angle, mask=turns, other=0.0)
    return x * cos + tl.where(first, -other, other) * sin


@triton.jit
def _rope_write_kernel(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, k_cache_ptr, v_cache_ptr, start_ptr, num_heads, head_dim, value_dim,
    capacity, stride_q, stride_k, stride_v,
    N_ROT: tl.constexpr, INTERLEAVED: tl.constexpr, RING: tl.constexpr, K_KIND: tl.constexpr, V_KIND: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Program (t, j): query head j for j < num_heads, else key and value head j - num_heads."""
    t, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(start_ptr) + tl.program_id(0)
    c = tl.arange(0, BLOCK_D)
    if j < num_heads:
        head = q_ptr + t * stride_q + j * head_dim
        y = _rotated(head, cos_ptr, sin_ptr, position, head_dim, N_ROT, INTERLEAVED, c)
        tl.debug_barrier()  # a component's partner is another thread's: all are read before any is written
        tl.store(head + c, y, mask=c < N_ROT)
    else:
        g = j - num_heads
        slot = position % capacity if RING else position
        row = g.to(tl.int64) * capacity + slot
        head = k_ptr + t * stride_k + g * head_dim
        y = _rotated(head, cos_ptr, sin_ptr, position, head_dim, N_ROT, INTERLEAVED, c)
        tl.debug_barrier()
        tl.store(head + c, y, mask=c < N_ROT)
        write_block(k_cache_ptr, row, y, c, head_dim, K_KIND, BLOCK_D)
        e = tl.arange(0, BLOCK_V)
        v = tl.load(v_ptr + t * stride_v + g * value_dim + e, mask=e < value_dim, other=0.0)
        write_block(v_cache_ptr, row, v, e, value_dim, V_KIND, BLOCK_V)


def rope_write(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rope: RopeTable, start: torch.Tensor, cache: KVLayer
) -> None:
    """Rotate q [T, H * d] and k [T, G * d] in place for positions start[0].. and write k and v [T, G * dv] into `cache`
    there. `start` int32 [1] on the device. Nothing is checked here.
    """
    n_kv = cache.k.shape[0]
    head_dim, value_dim = k.shape[1] // n_kv, v.shape[1] // n_kv
    num_heads = q.shape[1] // head_dim
    k_kind, v_kind = KIND_OF[cache.k_dtype], KIND_OF[cache.v_dtype]
    widest = [32 if kind == Q8_0_CACHE.value else 1 for kind in (k_kind, v_kind)]
    _rope_write_kernel[(q.shape[0], num_heads + n_kv)](
        q, k, v, rope.cos, rope.sin, cache.k, cache.v, start, num_heads, head_dim, value_dim, cache.k.shape[1],
        q.stride(0), k.stride(0), v.stride(0),
        N_ROT=rope.n_rot, INTERLEAVED=rope.interleaved, RING=cache.ring,
        K_KIND=k_kind, V_KIND=v_kind,
        BLOCK_D=max(next_power_of_two(head_dim), widest[0]), BLOCK_V=max(next_power_of_two(value_dim), widest[1]),
        num_warps=1 if head_dim <= 256 else 4,
    )  # fmt: skip
