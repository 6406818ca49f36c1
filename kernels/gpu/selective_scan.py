"""The selective scan of Mamba-2, token after token, with each head's state in registers.

Columns of a state do not meet: a program owns BLOCK_P of them, for all tokens of the call.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.softplus import softplus
from kernels.gpu.tiling import Device, next_power_of_two
from kernels.gpu.workspace import Fresh
from kernels.selective_scan import SelectiveScan


@triton.jit(do_not_specialize=["n_tokens"])
def _scan_kernel(
    xbc_ptr, dt_ptr, decay_ptr, dt_bias_ptr, skip_ptr, state_ptr, out_ptr, n_tokens, num_groups, num_heads, state_size,
    head_dim, stride_xbc, stride_dt,
    BLOCK_N: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Program (h, b): columns b * BLOCK_P.. of head h's state."""
    h = tl.program_id(0)
    group = h // (num_heads // num_groups)
    i = tl.arange(0, BLOCK_N)
    j = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    i_mask, j_mask = i < state_size, j < head_dim
    mask = i_mask[:, None] & j_mask[None, :]
    place = state_ptr + (h.to(tl.int64) * state_size + i[:, None]) * head_dim + j[None, :]
    state = tl.load(place, mask=mask, other=0.0)
    decay, dt_bias, skip = tl.load(decay_ptr + h), tl.load(dt_bias_ptr + h), tl.load(skip_ptr + h)
    for at in range(n_tokens):
        t = tl.cast(at, tl.int64)
        row = xbc_ptr + t * stride_xbc
        pairs = row + num_heads * head_dim + group * state_size + i
        x = tl.load(row + h * head_dim + j, mask=j_mask, other=0.0)
        b = tl.load(pairs, mask=i_mask, other=0.0)
        c = tl.load(pairs + num_groups * state_size, mask=i_mask, other=0.0)
        step = softplus(tl.load(dt_ptr + t * stride_dt + h) + dt_bias)
        state = state * tl.exp(decay * step) + b[:, None] * (step * x)[None, :]
        out = out_ptr + (t * num_heads + h) * head_dim + j
        tl.store(out, tl.sum(state * c[:, None], axis=0) + skip * x, mask=j_mask)
    tl.store(place, state, mask=mask)


def selective_scan(
    xbc: torch.Tensor, dt: torch.Tensor, scan: SelectiveScan, state: torch.Tensor, device: Device, memory: Fresh
) -> torch.Tensor:
    """What `RecurrentOps.selective_scan` says: float32 [T, H * p] in `memory`; mutates `state` float32 [H, n, p]."""
    n_tokens = xbc.shape[0]
    out = memory.take((n_tokens, scan.num_heads * scan.head_dim))
    block_p = next_power_of_two(scan.head_dim) if device.interpreted else min(next_power_of_two(scan.head_dim), 32)
    _scan_kernel[(scan.num_heads, triton.cdiv(scan.head_dim, block_p))](
        xbc, dt, scan.decay, scan.dt_bias, scan.skip, state, out, n_tokens, scan.num_groups, scan.num_heads,
        scan.state_size, scan.head_dim, xbc.stride(0), dt.stride(0),
        BLOCK_N=next_power_of_two(scan.state_size), BLOCK_P=block_p, num_warps=4,
    )  # fmt: skip
    return out
