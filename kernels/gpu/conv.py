"""Causal convolution of each channel on its own, over the inputs of earlier calls too."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.sigmoid import sigmoid
from kernels.gpu.workspace import Fresh

BLOCK_T = 16


@triton.jit
def _shift_state(x_ptr, state_ptr, n_tokens, width, stride_x, c, c_mask, K: tl.constexpr):
    """state[j] = input[T + j] for the channels c; ascending, so that no row is read after it was written."""
    for j in tl.static_range(K - 1):
        at = n_tokens + j - (K - 1) + tl.zeros_like(c)
        old = tl.load(state_ptr + (n_tokens + j) * width + c, mask=c_mask & (at < 0), other=0.0)
        new = tl.load(x_ptr + at.to(tl.int64) * stride_x + c, mask=c_mask & (at >= 0), other=0.0)
        tl.store(state_ptr + j * width + c, tl.where(at < 0, old, new), mask=c_mask)


@triton.jit(do_not_specialize=["n_tokens"])
def _conv_kernel(
    x_ptr, kernel_ptr, bias_ptr, state_ptr, out_ptr, n_tokens, width, stride_x,
    K: tl.constexpr, BIASED: tl.constexpr, SILU: tl.constexpr, UPDATE: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Program (b, t): channels b * BLOCK_C.. of tokens t * BLOCK_T..; UPDATE: also leaves the state."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    t = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    c_mask = c < width
    mask = (t < n_tokens)[:, None] & c_mask[None, :]
    acc = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    if BIASED:
        acc += tl.load(bias_ptr + c, mask=c_mask, other=0.0)[None, :]
    for j in tl.static_range(K):
        weight = tl.load(kernel_ptr + j * width + c, mask=c_mask, other=0.0)
        at = t + j - (K - 1)
        x = x_ptr + at.to(tl.int64)[:, None] * stride_x + c[None, :]
        acc += weight[None, :] * tl.load(x, mask=mask & (at >= 0)[:, None], other=0.0)
        old = state_ptr + (t + j)[:, None] * width + c[None, :]
        acc += weight[None, :] * tl.load(old, mask=mask & (at < 0)[:, None], other=0.0)
    if SILU:
        acc = acc * sigmoid(acc)
    tl.store(out_ptr + t.to(tl.int64)[:, None] * width + c[None, :], acc, mask=mask)
    if UPDATE:
        tl.debug_barrier()  # other threads of this program read the state for other tokens
        _shift_state(x_ptr, state_ptr, n_tokens, width, stride_x, c, c_mask, K)


@triton.jit(do_not_specialize=["n_tokens"])
def _state_kernel(x_ptr, state_ptr, n_tokens, width, stride_x, K: tl.constexpr, BLOCK_C: tl.constexpr):
    """Program (b): the state of channels b * BLOCK_C.."""
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    _shift_state(x_ptr, state_ptr, n_tokens, width, stride_x, c, c < width, K)


def causal_conv(
    x: torch.Tensor, kernel: torch.Tensor, state: torch.Tensor, silu: bool, bias: torch.Tensor | None, memory: Fresh
) -> torch.Tensor:
    """out[t, c] = bias[c] + sum over j of kernel[j, c] * input[t + j, c], input being `state` [K - 1, C] and behind it
    x [T, C]: float32 [T, C] in `memory`. `state` is left with the last K - 1 inputs. `silu`: x * sigmoid(x) of each
    sum.
    """
    n_tokens, width = x.shape
    out = memory.take((n_tokens, width))
    block, n_blocks = 128, triton.cdiv(width, 128)
    one = n_tokens <= BLOCK_T
    _conv_kernel[(n_blocks, triton.cdiv(n_tokens, BLOCK_T))](
        x, kernel, kernel if bias is None else bias, state, out, n_tokens, width, x.stride(0),
        K=kernel.shape[0], BIASED=bias is not None, SILU=silu, UPDATE=one, BLOCK_T=BLOCK_T, BLOCK_C=block, num_warps=4,
    )  # fmt: skip
    if not one:
        _state_kernel[(n_blocks,)](
            x, state, n_tokens, width, x.stride(0), K=kernel.shape[0], BLOCK_C=block, num_warps=4
        )
    return out
