"""Inner loops that the kernels share: rows of GGUF blocks times few tokens, and a tile of rows times many tokens; and
where the rows of an expert lie.

Both loops decode each block once a program and sum in float32 in an order that depends on tile sizes alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.blocks import column, lane_weight, load_lanes
from kernels.gpu.precision import rounded


@triton.jit
def matrix_row(table_ptr, stride_table, expert, row, n_row_bytes):
    """(pointers to rows `row` of the expert's matrix, whether it is resident), both of the shape of `row`."""
    address = tl.load(table_ptr + expert * stride_table) + tl.zeros_like(row).to(tl.int64)
    return address.to(tl.pointer_type(tl.uint8)) + row.to(tl.int64) * n_row_bytes, address != 0


@triton.jit
def row_dots(
    x_ptr, x_offsets, token_mask, row, row_mask, n_lanes,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Dots of weight rows [BLOCK_N] at pointers `row` with the float32 rows of x at `x_offsets` [BLOCK_T] elements:
    float32 [BLOCK_T, BLOCK_N]. Masked rows and tokens read nothing.
    """
    acc = tl.zeros((BLOCK_T, BLOCK_N, BLOCK_W), tl.float32)
    x_row = (x_ptr + x_offsets)[:, None]
    for start in range(0, n_lanes, BLOCK_W):
        i = start + tl.arange(0, BLOCK_W)
        lane_mask = i < n_lanes
        lanes = load_lanes(row[:, None], i[None, :], row_mask[:, None] & lane_mask[None, :], TYPE)
        for slot in tl.static_range(SLOTS):
            k = column(i, slot, TYPE)
            x = tl.load(x_row + k[None, :], mask=token_mask[:, None] & lane_mask[None, :], other=0.0)
            acc += x[:, None, :] * lane_weight(lanes, slot, TYPE)[None, :, :]
    return tl.sum(acc, axis=2)


@triton.jit
def tile_dots(
    acc, x_ptr, x_offsets, token_mask, row, row_mask, n_lanes,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, BLOCK_W: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc [BLOCK_N, BLOCK_M] plus the products of the weight rows at pointers `row` [BLOCK_N] with float32 rows of x in
    lane order (see `kernels.gpu.lane_order`) at `x_offsets` [BLOCK_M] elements, on tensor cores.

    Weights are the left operand: warps divide its rows, so that no block is decoded twice in a program.
    """
    x_row = (x_ptr + x_offsets)[None, :]
    for start in range(0, n_lanes, BLOCK_W):
        i = start + tl.arange(0, BLOCK_W)
        lane_mask = i < n_lanes
        lanes = load_lanes(row[:, None], i[None, :], row_mask[:, None] & lane_mask[None, :], TYPE)
        for slot in tl.static_range(SLOTS):
            x = tl.load(x_row + (slot * n_lanes + i)[:, None], mask=lane_mask[:, None] & token_mask[None, :], other=0.0)
            if SLOTS == 1:  # others were rounded when they were put in order
                x = rounded(x, PRECISION)
            w = rounded(lane_weight(lanes, slot, TYPE), PRECISION)
            acc = tl.dot(w, x, acc, input_precision=PRECISION)
    return acc
