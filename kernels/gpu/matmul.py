"""A matrix of GGUF blocks times many tokens (prefill), tiled, on tensor cores.

Weights are decoded to float32 and rounded to TF32, as are activations: 11 significant bits, more than the 8-bit blocks
that CPU kernels round activations to, and the range of float32. See `kernels.gpu.precision`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.backend import Weight
from kernels.gpu.dots import tile_dots
from kernels.gpu.precision import weight_precision
from kernels.gpu.tiling import SLOTS, Device, MatmulTile, lanes_of, matmul_tile
from kernels.quant_types import row_bytes


@triton.jit(do_not_specialize=["n_tokens"])
def _matmul_kernel(
    x_ptr, w_ptr, bias_ptr, out_ptr, n_tokens, n_rows, n_lanes, n_row_bytes, stride_x, stride_out,
    TYPE: tl.constexpr, SLOTS: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Program (m, n): tokens m * BLOCK_M.. times rows n * BLOCK_N..; m runs fastest, so that programs that read the
    same weights run together.
    """
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_mask, n_mask = offs_m < n_tokens, offs_n < n_rows
    row = w_ptr + offs_n.to(tl.int64) * n_row_bytes
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    acc = tile_dots(
        acc, x_ptr, offs_m.to(tl.int64) * stride_x, m_mask, row, n_mask, n_lanes, TYPE, SLOTS, BLOCK_W, PRECISION
    )
    if HAS_BIAS:
        acc += tl.load(bias_ptr + offs_n, mask=n_mask, other=0.0)[:, None]
    out = out_ptr + offs_m.to(tl.int64)[None, :] * stride_out + offs_n[:, None]
    tl.store(out, acc, mask=n_mask[:, None] & m_mask[None, :])


def matmul(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None, out: torch.Tensor, device: Device,
    tile: MatmulTile | None = None,
) -> None:  # fmt: skip
    """out[t] = W x[t] (+ bias [n_rows]) for any number of tokens; x float32 [T, n_cols] in the lane order of the
    weight's type, see `kernels.gpu.lane_order`; writes `out` float32 [T, n_rows], which may be columns of wider rows.
    """
    tile = tile or matmul_tile(weight.quant_type, weight.n_rows, x.shape[0], device)
    grid = (triton.cdiv(x.shape[0], tile.block_m), triton.cdiv(weight.n_rows, tile.block_n))
    _matmul_kernel[grid](
        x, weight.data, out if bias is None else bias, out, x.shape[0], weight.n_rows,
        lanes_of(weight.quant_type, weight.n_cols), row_bytes(weight.quant_type, weight.n_cols),
        x.stride(0), out.stride(0),
        TYPE=int(weight.quant_type), SLOTS=SLOTS[weight.quant_type], HAS_BIAS=bias is not None,
        PRECISION=weight_precision(weight.quant_type, device),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_W=tile.block_w,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
