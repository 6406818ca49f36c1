"""Random blocks of every quant type: all bits random, the half-float scales set so that weights stay near 1.

For timing and tests of kernels; weights with the spread of a trained layer are not needed there.
"""

from __future__ import annotations

import numpy as np

from kernels.quant_types import QuantType, block_bytes, block_size

Q = QuantType

# byte offset of each half-float scale in a block, and the largest integer that it multiplies
_HALF_SCALES: dict[QuantType, tuple[tuple[int, ...], float]] = {
    Q.Q8_0: ((0,), 128),
    Q.Q4_0: ((0,), 8),
    Q.Q4_1: ((0, 2), 15),
    Q.Q5_0: ((0,), 16),
    Q.Q5_1: ((0, 2), 31),
    Q.IQ4_NL: ((0,), 127),
    Q.Q2_K: ((80, 82), 3 * 15),
    Q.Q3_K: ((108,), 4 * 32),
    Q.Q4_K: ((0, 2), 15 * 63),
    Q.Q5_K: ((0, 2), 31 * 63),
    Q.Q6_K: ((208,), 32 * 128),
    Q.IQ4_XS: ((0,), 127 * 32),
    Q.IQ2_XXS: ((0,), 43 * 4),
    Q.IQ3_S: ((0,), 15 * 31),
    Q.TQ1_0: ((52,), 1),
    Q.TQ2_0: ((64,), 1),
}
_FLOATS = {Q.F32: np.float32, Q.F16: np.float16}

BLOCK_TYPES = (Q.F32, Q.F16, Q.BF16, Q.MXFP4, *_HALF_SCALES)


def random_blocks(rng: np.random.Generator, quant_type: QuantType, n_rows: int, n_cols: int) -> np.ndarray:
    """uint8 [n_rows, row_bytes] of finite weights. Raises ValueError for a type that is not in BLOCK_TYPES."""
    if quant_type in _FLOATS or quant_type == Q.BF16:
        values = rng.standard_normal((n_rows, n_cols), dtype=np.float32)
        if quant_type == Q.BF16:
            return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
        return values.astype(_FLOATS[quant_type]).view(np.uint8)
    if quant_type not in BLOCK_TYPES:
        raise ValueError(f"no random blocks of {quant_type.name}; there are {', '.join(t.name for t in BLOCK_TYPES)}")
    n_blocks = n_cols // block_size(quant_type)
    blocks = rng.integers(0, 256, (n_rows, n_blocks, block_bytes(quant_type)), dtype=np.uint8)
    if quant_type == Q.MXFP4:
        blocks[:, :, 0] = rng.integers(124, 128, blocks.shape[:2])  # 2^(e - 128) times -12..12
        return blocks.reshape(n_rows, -1)
    offsets, largest = _HALF_SCALES[quant_type]
    for offset in offsets:
        scales = rng.uniform(0.5, 1.5, (*blocks.shape[:2], 1)) / largest
        blocks[:, :, offset : offset + 2] = scales.astype(np.float16).view(np.uint8)
    return blocks.reshape(n_rows, -1)
