"""Outputs that a gate of the same width weighs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.sigmoid import sigmoid


@triton.jit
def _sigmoid_gate_kernel(x_ptr, gate_ptr, width, stride_x, stride_gate, BLOCK: tl.constexpr):
    """Program (t, b): columns b * BLOCK.. of row t."""
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < width
    gate = tl.load(gate_ptr + t * stride_gate + c, mask=mask, other=0.0)
    x = tl.load(x_ptr + t * stride_x + c, mask=mask)
    tl.store(x_ptr + t * stride_x + c, x * sigmoid(gate), mask=mask)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(gate) in place for float32 x and gate [T, N], whose rows may lie apart; returns x."""
    block = 1024
    _sigmoid_gate_kernel[(x.shape[0], triton.cdiv(x.shape[1], block))](
        x, gate, x.shape[1], x.stride(0), gate.stride(0), BLOCK=block, num_warps=4
    )
    return x
