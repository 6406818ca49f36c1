"""Layer norm over rows: less the mean, over the deviation, with a weight and a bias; one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.norm import MAX_BLOCK
from kernels.gpu.tiling import Device, next_power_of_two
from kernels.gpu.workspace import Fresh


@triton.jit
def _layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, width, stride_x, eps, BLOCK: tl.constexpr):
    """Program (t): row t."""
    t = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + t * stride_x
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        sums += tl.load(x_row + i, mask=i < width, other=0.0)
    mean = tl.sum(sums, axis=0) / width
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        centred = tl.where(i < width, tl.load(x_row + i, mask=i < width, other=0.0) - mean, 0.0)
        squares += centred * centred
    scale = 1.0 / tl.sqrt_rn(tl.sum(squares, axis=0) / width + eps)
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < width
        y = (tl.load(x_row + i, mask=mask) - mean) * scale * tl.load(weight_ptr + i, mask=mask)
        tl.store(out_ptr + t * width + i, y + tl.load(bias_ptr + i, mask=mask), mask=mask)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, device: Device, memory: Fresh
) -> torch.Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the rows of float32 x [T, D]: float32 [T, D] in
    `memory`.
    """
    if not x.shape[1] == weight.shape[0] == bias.shape[0]:
        raise ValueError(f"a norm weight of {weight.shape[0]} and a bias of {bias.shape[0]} over rows of {x.shape[1]}")
    out = memory.take((x.shape[0], x.shape[1]))
    width = x.shape[1]
    block = next_power_of_two(width) if device.interpreted else min(next_power_of_two(width), MAX_BLOCK)
    _layer_norm_kernel[(x.shape[0],)](
        x, weight, bias, out, width, x.stride(0), eps, BLOCK=block, num_warps=1 if width <= 256 else 4
    )
    return out
