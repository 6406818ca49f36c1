"""The expert layers of a call of 1 to 8 tokens: one launch for gate, up and the unit over all listed groups, one for
down, or one for down and the weighted sum together.

Experts are read through the slot table, where they lie now. One launch serves one pair of quant types; programs of
experts of other types leave at once. An expert that is not resident (address 0) gives NaN. A pair's result depends on
its own expert and token alone, so listing groups together or one by one gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.dots import matrix_row, row_dots
from kernels.gpu.expert_calls import DeviceGroups, DeviceTable
from kernels.gpu.gated_unit import join, unit_arguments
from kernels.gpu.tiling import SLOTS, Device, lanes_of, row_tile
from kernels.gpu.workspace import Fresh
from kernels.quant_types import row_bytes


@triton.jit
def _gate_up_kernel(
    x_ptr, gate_ptr, up_ptr, types_ptr, gate_bias_ptr, up_bias_ptr, expert_ids_ptr, offsets_ptr, token_ids_ptr,
    which_ptr, h_ptr, num_experts, stride_table, n_rows, gate_lanes, up_lanes, gate_row_bytes, up_row_bytes,
    stride_x, stride_h, alpha, limit,
    GATE_TYPE: tl.constexpr, UP_TYPE: tl.constexpr, GATE_SLOTS: tl.constexpr, UP_SLOTS: tl.constexpr,
    MIXED: tl.constexpr, HAS_BIAS: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Program (w, n): rows n * BLOCK_N.. of gate and up for all tokens of group which[w]."""
    group = tl.load(which_ptr + tl.program_id(0))
    expert = tl.load(expert_ids_ptr + group)
    if MIXED:
        own = tl.load(types_ptr + expert) == GATE_TYPE
        if not (own & (tl.load(types_ptr + num_experts + expert) == UP_TYPE)):
            return
    first = tl.load(offsets_ptr + group)
    offs_t = tl.arange(0, BLOCK_T)
    t_mask = offs_t < tl.load(offsets_ptr + group + 1) - first
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = offs_n < n_rows
    tokens = tl.load(token_ids_ptr + first + offs_t, mask=t_mask, other=0)
    x_offsets = tokens.to(tl.int64) * stride_x
    gate_row, has_gate = matrix_row(gate_ptr, stride_table, expert, offs_n, gate_row_bytes)
    up_row, has_up = matrix_row(up_ptr, stride_table, expert, offs_n, up_row_bytes)
    resident = has_gate & has_up
    gate = row_dots(
        x_ptr, x_offsets, t_mask, gate_row, n_mask & resident, gate_lanes, GATE_TYPE, GATE_SLOTS, BLOCK_T, BLOCK_N,
        BLOCK_W,
    )  # fmt: skip
    up = row_dots(
        x_ptr, x_offsets, t_mask, up_row, n_mask & resident, up_lanes, UP_TYPE, UP_SLOTS, BLOCK_T, BLOCK_N, BLOCK_W
    )
    if HAS_BIAS:
        b = expert.to(tl.int64) * n_rows + offs_n
        gate += tl.load(gate_bias_ptr + b, mask=n_mask, other=0.0)[None, :]
        up += tl.load(up_bias_ptr + b, mask=n_mask, other=0.0)[None, :]
    h = tl.where(resident[None, :], join(gate, up, alpha, limit, UNIT), float("nan"))
    out = h_ptr + (first + offs_t).to(tl.int64)[:, None] * stride_h + offs_n[None, :]
    tl.store(out, h, mask=t_mask[:, None] & n_mask[None, :])


@triton.jit
def _down_kernel(
    h_ptr, down_ptr, types_ptr, bias_ptr, expert_ids_ptr, offsets_ptr, which_ptr, d_ptr, num_experts, stride_table,
    n_rows, n_lanes, n_row_bytes, stride_h, stride_d,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, MIXED: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Program (w, n): rows n * BLOCK_N.. of down for all pairs of group which[w]."""
    group = tl.load(which_ptr + tl.program_id(0))
    expert = tl.load(expert_ids_ptr + group)
    if MIXED:
        if tl.load(types_ptr + 2 * num_experts + expert) != TYPE:
            return
    first = tl.load(offsets_ptr + group)
    offs_t = tl.arange(0, BLOCK_T)
    t_mask = offs_t < tl.load(offsets_ptr + group + 1) - first
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = offs_n < n_rows
    pairs = (first + offs_t).to(tl.int64)
    row, resident = matrix_row(down_ptr, stride_table, expert, offs_n, n_row_bytes)
    acc = row_dots(
        h_ptr, pairs * stride_h, t_mask, row, n_mask & resident, n_lanes, TYPE, SLOTS, BLOCK_T, BLOCK_N, BLOCK_W
    )
    if HAS_BIAS:
        acc += tl.load(bias_ptr + expert.to(tl.int64) * n_rows + offs_n, mask=n_mask, other=0.0)[None, :]
    d = tl.where(resident[None, :], acc, float("nan"))
    tl.store(d_ptr + pairs[:, None] * stride_d + offs_n[None, :], d, mask=t_mask[:, None] & n_mask[None, :])


@triton.jit
def _down_combine_kernel(
    h_ptr, down_ptr, bias_ptr, expert_ids_ptr, weights_ptr, out_ptr, stride_table, n_rows, n_lanes, n_row_bytes,
    stride_h,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, HAS_BIAS: tl.constexpr, K: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Program (n): rows n * BLOCK_N.. of one token: every expert's down and their sum in rank order.

    The same steps as `_down_kernel` and `_combine_kernel`, so the same bits.
    """
    offs_t = tl.arange(0, BLOCK_T)
    t_mask = offs_t < 1
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = offs_n < n_rows
    total = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    for k in range(K):
        expert = tl.load(expert_ids_ptr + k)
        row, resident = matrix_row(down_ptr, stride_table, expert, offs_n, n_row_bytes)
        pair = (k + offs_t).to(tl.int64) * stride_h
        acc = row_dots(h_ptr, pair, t_mask, row, n_mask & resident, n_lanes, TYPE, SLOTS, BLOCK_T, BLOCK_N, BLOCK_W)
        if HAS_BIAS:
            acc += tl.load(bias_ptr + expert.to(tl.int64) * n_rows + offs_n, mask=n_mask, other=0.0)[None, :]
        weight = tl.load(weights_ptr + k)
        total = tl.fma(tl.zeros_like(acc) + weight, tl.where(resident[None, :], acc, float("nan")), total)
    tl.store(out_ptr + offs_t[:, None] + offs_n[None, :], total, mask=t_mask[:, None] & n_mask[None, :])


@triton.jit
def _combine_kernel(
    d_ptr, pair_of_ptr, weights_ptr, out_ptr, n_cols, stride_d, K: tl.constexpr, BLOCK: tl.constexpr
):
    """Program (t, b): columns b * BLOCK.. of token t, ranks 0, 1, .. in that order."""
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < n_cols
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(K):
        pair = tl.load(pair_of_ptr + t * K + k).to(tl.int64)
        d = tl.load(d_ptr + pair * stride_d + c, mask=mask, other=0.0)
        total = tl.fma(tl.zeros_like(d) + tl.load(weights_ptr + t * K + k), d, total)
    tl.store(out_ptr + t * n_cols + c, total, mask=mask)


def gate_up(
    x: torch.Tensor, made: DeviceTable, groups: DeviceGroups, which: torch.Tensor, h: torch.Tensor, device: Device
) -> None:
    """h[pair] = unit(gate_e x, up_e x) for the groups in `which` (int32, on the device); x float32 [T, D], T up to
    8.
    """
    table, biases = made.table, made.table.biases
    unit, alpha, limit = unit_arguments(table.unit)
    for gate_type, up_type in made.gate_up_types:
        tile = row_tile(gate_type, table.intermediate_size, table.hidden_size, groups.n_tokens, device)
        _gate_up_kernel[(which.shape[0], triton.cdiv(table.intermediate_size, tile.block_n))](
            x, made.gate, made.up, made.types, h if biases is None else biases.gate, h if biases is None else biases.up,
            groups.expert_ids, groups.offsets, groups.token_ids, which, h, made.gate.shape[0],
            made.gate.stride(0), table.intermediate_size,
            lanes_of(gate_type, table.hidden_size), lanes_of(up_type, table.hidden_size),
            row_bytes(gate_type, table.hidden_size), row_bytes(up_type, table.hidden_size), x.stride(0), h.stride(0),
            alpha, limit,
            GATE_TYPE=int(gate_type), UP_TYPE=int(up_type), GATE_SLOTS=SLOTS[gate_type], UP_SLOTS=SLOTS[up_type],
            MIXED=len(made.gate_up_types) > 1, HAS_BIAS=biases is not None, UNIT=unit,
            BLOCK_T=tile.block_t, BLOCK_N=tile.block_n, BLOCK_W=tile.block_w, num_warps=tile.num_warps,
        )  # fmt: skip


def down(
    h: torch.Tensor, made: DeviceTable, groups: DeviceGroups, which: torch.Tensor, d: torch.Tensor, device: Device
) -> None:
    """d[pair] = down_e h[pair] for the groups in `which`; h float32 [P, F], d float32 [P, D]."""
    table, biases = made.table, made.table.biases
    for quant_type in made.down_types:
        tile = row_tile(quant_type, table.hidden_size, table.intermediate_size, groups.n_tokens, device)
        _down_kernel[(which.shape[0], triton.cdiv(table.hidden_size, tile.block_n))](
            h, made.down, made.types, d if biases is None else biases.down, groups.expert_ids, groups.offsets, which, d,
            made.down.shape[0], made.down.stride(0), table.hidden_size, lanes_of(quant_type, table.intermediate_size),
            row_bytes(quant_type, table.intermediate_size), h.stride(0), d.stride(0),
            TYPE=int(quant_type), SLOTS=SLOTS[quant_type], MIXED=len(made.down_types) > 1, HAS_BIAS=biases is not None,
            BLOCK_T=tile.block_t, BLOCK_N=tile.block_n, BLOCK_W=tile.block_w, num_warps=tile.num_warps,
        )  # fmt: skip


def combine(d: torch.Tensor, groups: DeviceGroups, topk_weights: torch.Tensor, memory: Fresh) -> torch.Tensor:
    """Sum over ranks 0, 1, .. of topk_weights[t, k] * d[pair_of[t, k]]: float32 [T, D] in `memory`."""
    n_tokens, n_cols = groups.n_tokens, d.shape[1]
    out = memory.take((n_tokens, n_cols))
    block = 1024
    _combine_kernel[(n_tokens, triton.cdiv(n_cols, block))](
        d, groups.pair_of, topk_weights, out, n_cols, d.stride(0),
        K=groups.num_experts_per_tok, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


def down_combine(
    h: torch.Tensor, made: DeviceTable, groups: DeviceGroups, topk_weights: torch.Tensor, device: Device, memory: Fresh
) -> torch.Tensor:
    """`down` of all groups and `combine` in one launch, for one token and one type of down: float32 [1, D] in `memory`,
    the same bits. Raises ValueError for more tokens or types.
    """
    table, biases = made.table, made.table.biases
    if groups.n_tokens != 1 or len(made.down_types) != 1:
        raise ValueError(f"{groups.n_tokens} tokens and {len(made.down_types)} types of down in one launch")
    (quant_type,) = made.down_types
    out = memory.take((1, table.hidden_size))
    tile = row_tile(quant_type, table.hidden_size, table.intermediate_size, 1, device)
    _down_combine_kernel[(triton.cdiv(table.hidden_size, tile.block_n),)](
        h, made.down, h if biases is None else biases.down, groups.expert_ids, topk_weights, out,
        made.down.stride(0), table.hidden_size,
        lanes_of(quant_type, table.intermediate_size), row_bytes(quant_type, table.intermediate_size), h.stride(0),
        TYPE=int(quant_type), SLOTS=SLOTS[quant_type], HAS_BIAS=biases is not None, K=groups.num_experts_per_tok,
        BLOCK_T=tile.block_t, BLOCK_N=tile.block_n, BLOCK_W=tile.block_w, num_warps=tile.num_warps,
    )  # fmt: skip
    return out
