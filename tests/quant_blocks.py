"""Random GGUF blocks for kernel tests: every byte random, scales drawn from ordinary or extreme float16 numbers."""

from __future__ import annotations

import numpy as np

from kernels.cpu.dots import DIRECT_TYPES
from kernels.quant_types import QuantType, block_bytes, block_size, row_bytes

# byte offsets of the float16 scales of a block; types that are not here have one at 0
SCALE_OFFSETS = {
    QuantType.Q4_1: (0, 2),
    QuantType.Q5_1: (0, 2),
    QuantType.Q2_K: (80, 82),
    QuantType.Q3_K: (108,),
    QuantType.Q4_K: (0, 2),
    QuantType.Q5_K: (0, 2),
    QuantType.Q6_K: (208,),
    QuantType.TQ1_0: (52,),
    QuantType.TQ2_0: (64,),
}
FLOAT_TYPES = (QuantType.F32, QuantType.F16, QuantType.BF16)
EXTREME_SCALES = np.array([0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 1.0, -1.0, 65504.0, -65504.0], np.float16)


def random_rows(
    rng: np.random.Generator, quant_type: QuantType, n_rows: int, n_cols: int, extreme: bool = False
) -> np.ndarray:
    """uint8 [n_rows, row_bytes] of weights around 1 / sqrt(n_cols), or of any finite scale."""
    if quant_type in FLOAT_TYPES:
        values = rng.standard_normal((n_rows, n_cols)).astype(np.float32) * np.float32(n_cols**-0.5)
        if extreme:
            values[rng.random(values.shape) < 0.1] = 6e4
        if quant_type == QuantType.F32:
            return values.view(np.uint8)
        if quant_type == QuantType.F16:
            return values.astype(np.float16).view(np.uint8)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    rows = rng.integers(0, 256, (n_rows, row_bytes(quant_type, n_cols)), dtype=np.uint8)
    blocks = rows.reshape(n_rows, -1, block_bytes(quant_type))
    if quant_type == QuantType.MXFP4:
        blocks[..., 0] = rng.integers(*((0, 180) if extreme else (118, 124)), blocks.shape[:2])
        return rows
    for offset in SCALE_OFFSETS.get(quant_type, (0,)):
        scales = rng.standard_normal(blocks.shape[:2]) * n_cols**-0.5 / 64
        if extreme:
            scales = rng.choice(EXTREME_SCALES, blocks.shape[:2])
        blocks[..., offset : offset + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return rows


def as_read(x: np.ndarray, quant_type: QuantType) -> np.ndarray:
    """float32 x [.., n_cols] as the float64 numbers that a kernel for `quant_type` weights reads: its 8-bit blocks."""
    size = block_size(quant_type)
    if size == 1 or quant_type not in DIRECT_TYPES:
        return x.astype(np.float64)
    blocks = x.reshape(-1, size)
    d = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    q = np.rint(blocks * (np.float32(1) / d))
    return (q.astype(np.float64) * d).reshape(x.shape)
