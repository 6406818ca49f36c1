"""Activations rearranged for tiled matmul: columns in the order in which a quant type's lanes hold them.

Row t of the result is slot 0 of every lane, then slot 1 of every lane, and so on: element slot * n_lanes + i is
x[t, column(i, slot)]. A tile of it is then contiguous, whatever the block layout, and the order of a dot's terms is
free. Numbers are rounded on the way. Types whose lanes have one slot need no copy.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.backend import Activations
from kernels.gpu.blocks import column
from kernels.gpu.precision import rounded, weight_precision
from kernels.gpu.tiling import SLOTS, Device, lanes_of
from kernels.quant_types import QuantType

LAYOUT_OF = {
    QuantType.IQ4_NL: QuantType.Q4_0,
    QuantType.Q5_K: QuantType.Q4_K,
}
"""Types that share another's order."""


@triton.jit
def _lane_order_kernel(
    x_ptr, out_ptr, n_lanes, n_cols, stride_x,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (t, b): lanes b * BLOCK.. of row t."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n_lanes
    for slot in tl.static_range(SLOTS):
        x = tl.load(x_ptr + t * stride_x + column(i, slot, TYPE), mask=mask)
        tl.store(out_ptr + t * n_cols + slot * n_lanes + i, rounded(x, PRECISION), mask=mask)


def lane_order(x: torch.Tensor, quant_type: QuantType, device: Device) -> torch.Tensor:
    """x float32 [T, n_cols] in the order of `quant_type` and rounded for its tensor cores: fresh, or x itself where a
    lane holds one weight.
    """
    if SLOTS[quant_type] == 1:
        return x
    n_lanes = lanes_of(quant_type, x.shape[1])
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    block = 1024 if device.interpreted else 256
    _lane_order_kernel[(x.shape[0], triton.cdiv(n_lanes, block))](
        x, out, n_lanes, x.shape[1], x.stride(0),
        TYPE=int(quant_type), SLOTS=SLOTS[quant_type], PRECISION=weight_precision(quant_type, device), BLOCK=block,
        num_warps=4,
    )  # fmt: skip
    return out


class LaneOrders:
    """Activations in the orders that weights ask for, each made once and kept in `Activations.forms`."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def of(self, a: Activations, quant_type: QuantType) -> torch.Tensor:
        """a.x in the lane order of `quant_type`."""
        layout = LAYOUT_OF.get(quant_type, quant_type)
        if SLOTS[layout] == 1:
            return a.x
        key = f"lanes of {layout.name}"
        if key not in a.forms:
            a.forms[key] = lane_order(a.x, layout, self._device)
        return a.forms[key]
