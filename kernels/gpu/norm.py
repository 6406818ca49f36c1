"""RMS norm over rows, and in place over runs inside rows: one launch, each row read from memory once where it fits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.sigmoid import sigmoid
from kernels.gpu.tiling import Device, next_power_of_two
from kernels.gpu.workspace import Fresh

MAX_BLOCK = 4096
"""Elements that a program holds at once; longer rows are walked twice, the second time from cache."""


@triton.jit
def _norm_kernel(x_ptr, gate_ptr, weight_ptr, out_ptr, width, n_runs, stride_x, stride_gate, stride_out, eps,
                 GATED: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Program (r): run r % n_runs of row r / n_runs, `width` elements; out may be x."""
    row = (tl.program_id(0) // n_runs).to(tl.int64)
    run = tl.program_id(0) % n_runs * width
    x_row, out_row = x_ptr + row * stride_x + run, out_ptr + row * stride_out + run
    gate_row = gate_ptr + row * stride_gate + run
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + i, mask=i < width, other=0.0)
        squares += x * x
    scale = 1.0 / tl.sqrt_rn(tl.sum(squares, axis=0) / width + eps)
    for start in range(0, width, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < width
        y = tl.load(x_row + i, mask=mask) * scale * tl.load(weight_ptr + i, mask=mask)
        if GATED:
            gate = tl.load(gate_row + i, mask=mask)
            y = y * (gate * sigmoid(gate))
        tl.store(out_row + i, y, mask=mask)


def _launch(
    x: torch.Tensor, gate: torch.Tensor | None, weight: torch.Tensor, out: torch.Tensor, eps: float, device: Device
) -> None:
    width = weight.shape[0]
    if x.shape[1] % width:
        raise ValueError(f"a norm weight of {width} over rows of {x.shape[1]}")
    n_runs = x.shape[1] // width
    block = next_power_of_two(width) if device.interpreted else min(next_power_of_two(width), MAX_BLOCK)
    _norm_kernel[(x.shape[0] * n_runs,)](
        x, x if gate is None else gate, weight, out, width, n_runs, x.stride(0),
        x.stride(0) if gate is None else gate.stride(0), out.stride(0), eps,
        GATED=gate is not None, BLOCK=block, num_warps=1 if width <= 256 else 4,
    )  # fmt: skip


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, device: Device, memory: Fresh) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the rows of float32 x [T, D]: float32 [T, D] in `memory`."""
    if x.shape[1] != weight.shape[0]:
        raise ValueError(f"a norm weight of {weight.shape[0]} over rows of {x.shape[1]}")
    out = memory.take((x.shape[0], x.shape[1]))
    _launch(x, None, weight, out, eps, device)
    return out


def head_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, device: Device) -> torch.Tensor:
    """The norm in place over each run of len(weight) in the rows of x, which may lie apart; returns x."""
    _launch(x, None, weight, x, eps, device)
    return x


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, device: Device) -> torch.Tensor:
    """`head_norm` times silu(gate) of the same shape, in place; returns x."""
    _launch(x, gate, weight, x, eps, device)
    return x
