"""Rows of the embedding table, decoded to float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.backend import Weight
from kernels.gpu.blocks import column, lane_weight, load_lanes
from kernels.gpu.tiling import SLOTS, Device, lanes_of
from kernels.gpu.workspace import Fresh
from kernels.quant_types import row_bytes


@triton.jit
def _embed_kernel(
    table_ptr, ids_ptr, out_ptr, n_lanes, n_cols, n_row_bytes, TYPE: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (t, b): lanes b * BLOCK.. of the row of token t."""
    t = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n_lanes
    lanes = load_lanes(table_ptr + tl.load(ids_ptr + t) * n_row_bytes, i, mask, TYPE)
    for slot in tl.static_range(SLOTS):
        tl.store(out_ptr + t * n_cols + column(i, slot, TYPE), lane_weight(lanes, slot, TYPE), mask=mask)


def embed(table: Weight, token_ids: torch.Tensor, device: Device, memory: Fresh) -> torch.Tensor:
    """Rows `token_ids` int64 [T] of `table`: float32 [T, D] in `memory`. Ids are not checked here."""
    n_lanes = lanes_of(table.quant_type, table.n_cols)
    out = memory.take((token_ids.shape[0], table.n_cols))
    block = 1024 if device.interpreted else 256
    _embed_kernel[(token_ids.shape[0], triton.cdiv(n_lanes, block))](
        table.data, token_ids, out, n_lanes, table.n_cols, row_bytes(table.quant_type, table.n_cols),
        TYPE=int(table.quant_type), SLOTS=SLOTS[table.quant_type], BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out
