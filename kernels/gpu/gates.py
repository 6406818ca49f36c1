"""Outputs that a gate of the same width weighs, or one of each row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.sigmoid import sigmoid


@triton.jit
def _sigmoid_gate_kernel(x_ptr, gate_ptr, width, stride_x, stride_gate, A_ROW: tl.constexpr, BLOCK: tl.constexpr):
    """Program (t, b): columns b * BLOCK.. of row t; A_ROW: one gate for all of them."""
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < width
    gate = tl.load(gate_ptr + t * stride_gate + (c * 0 if A_ROW else c), mask=mask, other=0.0)
    x = tl.load(x_ptr + t * stride_x + c, mask=mask)
    tl.store(x_ptr + t * stride_x + c, x * sigmoid(gate), mask=mask)


def sigmoid_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(gate) in place for float32 x [T, N] and gate [T, N], or [T, 1] for whole rows; rows may lie apart.
    Returns x.
    """
    block = 1024
    _sigmoid_gate_kernel[(x.shape[0], triton.cdiv(x.shape[1], block))](
        x, gate, x.shape[1], x.stride(0), gate.stride(0), A_ROW=gate.shape[1] == 1, BLOCK=block, num_warps=4
    )
    return x
