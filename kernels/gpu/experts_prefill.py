"""The expert layers of a call of many tokens: tiles of one expert's tokens times its rows, on tensor cores.

Pair rows lie sorted by expert (`kernels.grouping`). A launch has one program row for each tile of BLOCK_M pair rows of
one group, listed on the host: tiles never cross a group's border, and begin at it. Worked example, BLOCK_M = 2:
    expert_ids = [2, 5, 7]   offsets = [0, 3, 4, 6]   token_ids = [0, 1, 2, 0, 1, 2]
    tiles (group, first pair row): (0, 0) rows 0 1 | (0, 2) row 2 and a masked one | (1, 3) row 3 | (2, 4) rows 4 5
Tile (0, 2) multiplies x[token_ids[2]] = x[2] by expert 2 and writes h[2]. With which = [0, 2] the third tile is left
out and the others are the same, bit for bit.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.backend import ExpertGroups
from kernels.gpu.dots import matrix_row, tile_dots
from kernels.gpu.expert_calls import DeviceGroups, DeviceTable, Upload
from kernels.gpu.gated_unit import join, unit_arguments
from kernels.gpu.precision import weight_precision
from kernels.gpu.tiling import SLOTS, Device, lanes_of, matmul_tile
from kernels.quant_types import QuantType, row_bytes


def tiles_of(groups: ExpertGroups, which: np.ndarray, block_m: int) -> np.ndarray:
    """int32 [n, 2]: (group, first pair row) of each tile of the groups in `which`, see the worked example."""
    first, stop = groups.offsets[which], groups.offsets[which + 1]
    counts = -(-(stop - first) // block_m)
    tile = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([np.repeat(which, counts), np.repeat(first, counts) + tile * block_m], axis=1).astype(np.int32)


@triton.jit
def _tile(tiles_ptr, expert_ids_ptr, offsets_ptr, BLOCK_M: tl.constexpr):
    """(expert, pair rows [BLOCK_M], which of them are the group's) of program row 0."""
    tile = tl.program_id(0)
    group, first = tl.load(tiles_ptr + 2 * tile), tl.load(tiles_ptr + 2 * tile + 1)
    pairs = first + tl.arange(0, BLOCK_M)
    return tl.load(expert_ids_ptr + group), pairs, pairs < tl.load(offsets_ptr + group + 1)


@triton.jit
def _expert_dots(
    x_ptr, x_offsets, m_mask, table_ptr, stride_table, expert, offs_n, n_mask, n_lanes, n_row_bytes,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """x rows times the expert's rows, NaN where it is not resident: float32 [BLOCK_N, BLOCK_M]."""
    row, resident = matrix_row(table_ptr, stride_table, expert, offs_n, n_row_bytes)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    acc = tile_dots(
        acc, x_ptr, x_offsets, m_mask, row, n_mask & resident, n_lanes, TYPE, SLOTS, BLOCK_W, PRECISION
    )
    return tl.where(resident[:, None], acc, float("nan"))


@triton.jit
def _prefill_gate_up_kernel(
    gate_x_ptr, up_x_ptr, gate_ptr, up_ptr, types_ptr, gate_bias_ptr, up_bias_ptr, expert_ids_ptr, offsets_ptr,
    token_ids_ptr, tiles_ptr, h_ptr, num_experts, stride_table, n_rows, gate_lanes, up_lanes, gate_row_bytes,
    up_row_bytes, stride_x, stride_h, alpha, limit,
    GATE_TYPE: tl.constexpr, UP_TYPE: tl.constexpr, GATE_SLOTS: tl.constexpr, UP_SLOTS: tl.constexpr,
    MIXED: tl.constexpr, HAS_BIAS: tl.constexpr, UNIT: tl.constexpr, GATE_PRECISION: tl.constexpr,
    UP_PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Program (tile, n): rows n * BLOCK_N.. of gate and up for the tile's pair rows."""
    expert, pairs, m_mask = _tile(tiles_ptr, expert_ids_ptr, offsets_ptr, BLOCK_M)
    if MIXED:
        own = tl.load(types_ptr + expert) == GATE_TYPE
        if not (own & (tl.load(types_ptr + num_experts + expert) == UP_TYPE)):
            return
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = offs_n < n_rows
    x_offsets = tl.load(token_ids_ptr + pairs, mask=m_mask, other=0).to(tl.int64) * stride_x
    gate = _expert_dots(
        gate_x_ptr, x_offsets, m_mask, gate_ptr, stride_table, expert, offs_n, n_mask, gate_lanes, gate_row_bytes,
        GATE_TYPE, GATE_SLOTS, GATE_PRECISION, BLOCK_M, BLOCK_N, BLOCK_W,
    )  # fmt: skip
    up = _expert_dots(
        up_x_ptr, x_offsets, m_mask, up_ptr, stride_table, expert, offs_n, n_mask, up_lanes, up_row_bytes,
        UP_TYPE, UP_SLOTS, UP_PRECISION, BLOCK_M, BLOCK_N, BLOCK_W,
    )  # fmt: skip
    if HAS_BIAS:
        b = expert.to(tl.int64) * n_rows + offs_n
        gate += tl.load(gate_bias_ptr + b, mask=n_mask, other=0.0)[:, None]
        up += tl.load(up_bias_ptr + b, mask=n_mask, other=0.0)[:, None]
    h = join(gate, up, alpha, limit, UNIT)
    out = h_ptr + pairs.to(tl.int64)[None, :] * stride_h + offs_n[:, None]
    tl.store(out, h, mask=n_mask[:, None] & m_mask[None, :])


@triton.jit
def _prefill_down_kernel(
    h_ptr, down_ptr, types_ptr, bias_ptr, expert_ids_ptr, offsets_ptr, tiles_ptr, d_ptr, num_experts, stride_table,
    n_rows, n_lanes, n_row_bytes, stride_h, stride_d,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, MIXED: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Program (tile, n): rows n * BLOCK_N.. of down for the tile's pair rows."""
    expert, pairs, m_mask = _tile(tiles_ptr, expert_ids_ptr, offsets_ptr, BLOCK_M)
    if MIXED:
        if tl.load(types_ptr + 2 * num_experts + expert) != TYPE:
            return
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = offs_n < n_rows
    acc = _expert_dots(
        h_ptr, pairs.to(tl.int64) * stride_h, m_mask, down_ptr, stride_table, expert, offs_n, n_mask, n_lanes,
        n_row_bytes, TYPE, SLOTS, PRECISION, BLOCK_M, BLOCK_N, BLOCK_W,
    )  # fmt: skip
    if HAS_BIAS:
        acc += tl.load(bias_ptr + expert.to(tl.int64) * n_rows + offs_n, mask=n_mask, other=0.0)[:, None]
    out = d_ptr + pairs.to(tl.int64)[None, :] * stride_d + offs_n[:, None]
    tl.store(out, acc, mask=n_mask[:, None] & m_mask[None, :])


def _mean_tokens(groups: DeviceGroups) -> int:
    """Tokens of an expert, by all of the call's groups, so that a listed subset takes the same tile."""
    return int(groups.host.token_ids.shape[0]) // int(groups.host.expert_ids.shape[0])


def gate_up(
    x_of: dict[QuantType, torch.Tensor], made: DeviceTable, groups: DeviceGroups, which: np.ndarray, h: torch.Tensor,
    device: Device, upload: Upload,
) -> None:  # fmt: skip
    """h[pair] = unit(gate_e x, up_e x) for the groups in `which` (host); x_of: the activations [T, D] in the lane order
    of each quant type of gate and up.
    """
    table, biases = made.table, made.table.biases
    unit, alpha, limit = unit_arguments(table.unit)
    for gate_type, up_type in made.gate_up_types:
        tile = matmul_tile(gate_type, table.intermediate_size, _mean_tokens(groups), device, two=True)
        tiles = upload(tiles_of(groups.host, which, tile.block_m))
        x = x_of[gate_type]
        _prefill_gate_up_kernel[(tiles.shape[0], triton.cdiv(table.intermediate_size, tile.block_n))](
            x, x_of[up_type], made.gate, made.up, made.types, h if biases is None else biases.gate,
            h if biases is None else biases.up, groups.expert_ids, groups.offsets, groups.token_ids, tiles, h,
            made.gate.shape[0], made.gate.stride(0), table.intermediate_size,
            lanes_of(gate_type, table.hidden_size), lanes_of(up_type, table.hidden_size),
            row_bytes(gate_type, table.hidden_size), row_bytes(up_type, table.hidden_size), x.stride(0), h.stride(0),
            alpha, limit,
            GATE_TYPE=int(gate_type), UP_TYPE=int(up_type), GATE_SLOTS=SLOTS[gate_type], UP_SLOTS=SLOTS[up_type],
            MIXED=len(made.gate_up_types) > 1, HAS_BIAS=biases is not None, UNIT=unit,
            GATE_PRECISION=weight_precision(gate_type, device), UP_PRECISION=weight_precision(up_type, device),
            BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_W=tile.block_w,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip


def down(
    h_of: dict[QuantType, torch.Tensor], made: DeviceTable, groups: DeviceGroups, which: np.ndarray, d: torch.Tensor,
    device: Device, upload: Upload,
) -> None:  # fmt: skip
    """d[pair] = down_e h[pair] for the groups in `which` (host); h_of: h [P, F] in the lane order of each type of
    down.
    """
    table, biases = made.table, made.table.biases
    for quant_type in made.down_types:
        tile = matmul_tile(quant_type, table.hidden_size, _mean_tokens(groups), device)
        tiles = upload(tiles_of(groups.host, which, tile.block_m))
        h = h_of[quant_type]
        _prefill_down_kernel[(tiles.shape[0], triton.cdiv(table.hidden_size, tile.block_n))](
            h, made.down, made.types, d if biases is None else biases.down, groups.expert_ids, groups.offsets, tiles, d,
            made.down.shape[0], made.down.stride(0), table.hidden_size, lanes_of(quant_type, table.intermediate_size),
            row_bytes(quant_type, table.intermediate_size), h.stride(0), d.stride(0),
            TYPE=int(quant_type), SLOTS=SLOTS[quant_type], MIXED=len(made.down_types) > 1, HAS_BIAS=biases is not None,
            PRECISION=weight_precision(quant_type, device),
            BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_W=tile.block_w,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip
