"""The gated delta rule, token after token, with each head's state in registers.

Columns of a state do not meet: a program owns BLOCK_V of them, for all tokens of the call.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.delta_rule import DELTA_NORM_EPS, DeltaRule
from kernels.gpu.sigmoid import sigmoid
from kernels.gpu.softplus import softplus
from kernels.gpu.tiling import Device, next_power_of_two
from kernels.gpu.workspace import Fresh


@triton.jit(do_not_specialize=["n_tokens"])
def _delta_kernel(
    qkv_ptr, beta_ptr, alpha_ptr, decay_ptr, dt_bias_ptr, state_ptr, out_ptr, n_tokens, num_key_heads, num_heads,
    key_dim, value_dim, eps, q_scale, stride_qkv, stride_beta, stride_alpha,
    TILED: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Program (h, b): columns b * BLOCK_V.. of head h's state."""
    h = tl.program_id(0)
    key_head = h % num_key_heads if TILED else h // (num_heads // num_key_heads)
    i = tl.arange(0, BLOCK_K)
    j = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    i_mask, j_mask = i < key_dim, j < value_dim
    mask = i_mask[:, None] & j_mask[None, :]
    place = state_ptr + (h.to(tl.int64) * key_dim + i[:, None]) * value_dim + j[None, :]
    state = tl.load(place, mask=mask, other=0.0)
    decay, dt_bias = tl.load(decay_ptr + h), tl.load(dt_bias_ptr + h)
    for step in range(n_tokens):
        t = tl.cast(step, tl.int64)
        row = qkv_ptr + t * stride_qkv
        q = tl.load(row + key_head * key_dim + i, mask=i_mask, other=0.0)
        k = tl.load(row + (num_key_heads + key_head) * key_dim + i, mask=i_mask, other=0.0)
        v = tl.load(row + 2 * num_key_heads * key_dim + h * value_dim + j, mask=j_mask, other=0.0)
        q = q * (q_scale / tl.sqrt_rn(tl.sum(q * q, axis=0) + eps))
        k = k * (1.0 / tl.sqrt_rn(tl.sum(k * k, axis=0) + eps))
        rate = sigmoid(tl.load(beta_ptr + t * stride_beta + h))
        state *= tl.exp(decay * softplus(tl.load(alpha_ptr + t * stride_alpha + h) + dt_bias))
        recalled = tl.sum(state * k[:, None], axis=0)
        state += k[:, None] * (rate * (v - recalled))[None, :]
        out = out_ptr + (t * num_heads + h) * value_dim + j
        tl.store(out, tl.sum(state * q[:, None], axis=0), mask=j_mask)
    tl.store(place, state, mask=mask)


def delta_rule(
    qkv: torch.Tensor, beta: torch.Tensor, alpha: torch.Tensor, rule: DeltaRule, state: torch.Tensor, device: Device,
    memory: Fresh,
) -> torch.Tensor:  # fmt: skip
    """What `Backend.delta_rule` says: float32 [T, H * dv] in `memory`; mutates `state` float32 [H, dk, dv]."""
    n_tokens = qkv.shape[0]
    out = memory.take((n_tokens, rule.num_heads * rule.value_dim))
    block_v = next_power_of_two(rule.value_dim) if device.interpreted else min(next_power_of_two(rule.value_dim), 32)
    _delta_kernel[(rule.num_heads, triton.cdiv(rule.value_dim, block_v))](
        qkv, beta, alpha, rule.decay, rule.dt_bias, state, out, n_tokens, rule.num_key_heads, rule.num_heads,
        rule.key_dim, rule.value_dim, DELTA_NORM_EPS, rule.key_dim**-0.5, qkv.stride(0), beta.stride(0),
        alpha.stride(0),
        TILED=rule.tiled, BLOCK_K=next_power_of_two(rule.key_dim), BLOCK_V=block_v, num_warps=4,
    )  # fmt: skip
    return out
