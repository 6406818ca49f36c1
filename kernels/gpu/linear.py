"""A matrix of GGUF blocks times 1 to 8 tokens: what decoding does most, bound by reading the weights once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.backend import Weight
from kernels.gpu.dots import row_dots
from kernels.gpu.tiling import SLOTS, Device, RowTile, lanes_of, row_tile
from kernels.quant_types import row_bytes


@triton.jit(do_not_specialize=["n_tokens"])
def _linear_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, n_tokens, n_rows, n_lanes, n_row_bytes, stride_x, stride_out,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Program (n): rows n * BLOCK_N.. for all tokens."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_t = tl.arange(0, BLOCK_T)
    n_mask, t_mask = offs_n < n_rows, offs_t < n_tokens
    row = w_ptr + offs_n.to(tl.int64) * n_row_bytes
    acc = row_dots(
        x_ptr, offs_t.to(tl.int64) * stride_x, t_mask, row, n_mask, n_lanes, TYPE, SLOTS, BLOCK_T, BLOCK_N, BLOCK_W
    )
    if HAS_BIAS:
        acc += tl.load(bias_ptr + offs_n, mask=n_mask, other=0.0)[None, :]
    out = out_ptr + offs_t.to(tl.int64)[:, None] * stride_out + offs_n[None, :]
    tl.store(out, acc, mask=t_mask[:, None] & n_mask[None, :])


def linear(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None, out: torch.Tensor, device: Device,
    tile: RowTile | None = None,
) -> None:  # fmt: skip
    """out[t] = W x[t] (+ bias [n_rows]) for x float32 [T, n_cols], T up to 8; writes `out` float32 [T, n_rows], which
    may be columns of wider rows.
    """
    n_tokens = x.shape[0]
    tile = tile or row_tile(weight.quant_type, weight.n_rows, weight.n_cols, n_tokens, device)
    _linear_kernel[(triton.cdiv(weight.n_rows, tile.block_n),)](
        x, weight.data, out if bias is None else bias, out, n_tokens, weight.n_rows,
        lanes_of(weight.quant_type, weight.n_cols), row_bytes(weight.quant_type, weight.n_cols),
        x.stride(0), out.stride(0),
        TYPE=int(weight.quant_type), SLOTS=SLOTS[weight.quant_type], HAS_BIAS=bias is not None,
        BLOCK_T=tile.block_t, BLOCK_N=tile.block_n, BLOCK_W=tile.block_w, num_warps=tile.num_warps,
    )  # fmt: skip
