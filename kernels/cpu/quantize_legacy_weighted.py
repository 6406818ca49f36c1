"""Q4_0, Q4_1, Q5_0 and Q5_1 under an importance matrix: scales of least weighted error instead of plain rounding.

Without a matrix `quantize_legacy` is the rule, bit for bit ggml's.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu.quantize_importance import per_block
from kernels.cpu.quantize_k_search import search_scales as search_with_minimum
from kernels.cpu.quantize_k_signed import search_scales as search_signed
from kernels.cpu.quantize_legacy import pack_offset, pack_signed

_BLOCK = 32


def quantize_signed(x: np.ndarray, importance: np.ndarray, half: int) -> np.ndarray:
    """`x` float32 [n_rows, n_cols] as Q4_0 (`half` 8) or Q5_0 (16) blocks, uint8 [n_blocks, ..]."""
    blocks, squares = x.reshape(-1, _BLOCK), _row_squares(x)
    scales, slopes = np.zeros((2, blocks.shape[0], 1), np.float32)
    search_signed(blocks, per_block(importance, _BLOCK), squares, _BLOCK, half, 0.0, scales, slopes)
    d = scales.astype("<f2").astype(np.float32)
    codes = np.clip(np.rint(blocks * _inverse(d)), -half, half - 1) + half
    return pack_signed(codes.astype(np.uint8), scales[:, 0], half)


def quantize_offset(x: np.ndarray, importance: np.ndarray, top: int) -> np.ndarray:
    """`x` float32 [n_rows, n_cols] as Q4_1 (`top` 15) or Q5_1 (31) blocks, uint8 [n_blocks, ..]."""
    blocks, squares = x.reshape(-1, _BLOCK), _row_squares(x)
    weighing = per_block(importance, _BLOCK), squares, _BLOCK, top
    scales, mins, *slopes = np.zeros((4, blocks.shape[0], 1), np.float32)
    search_with_minimum(blocks, *weighing, -0.9, 36, 0.0, scales, mins, *slopes)
    d, m = scales.astype("<f2").astype(np.float32), (-mins).astype("<f2").astype(np.float32)
    codes = np.clip(np.rint((blocks - m) * _inverse(d)), 0, top)
    return pack_offset(codes.astype(np.uint8), scales[:, 0], -mins[:, 0], top)


def _row_squares(x: np.ndarray) -> np.ndarray:
    """The mean square of each block's row, float32 [n_blocks]."""
    mean = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])
    return np.repeat(mean.astype(np.float32), x.shape[1] // _BLOCK)


def _inverse(d: np.ndarray) -> np.ndarray:
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
