"""Random weights written straight as quantised blocks: gigabytes in seconds, with the spread that a trained layer has.

The codes inside a block are random bits; the block's scales are set so that the dequantised weights have mean near
zero and the standard deviation asked for. No quantiser runs.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from kernels.quant_types import QuantType, block_bytes, block_size

Q = QuantType
SUPPORTED = (Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q5_0, Q.Q5_1, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.MXFP4)
_UNIFORM_4 = 4.61  # standard deviation of the integers 0..15
_UNIFORM_5 = 9.23  # of 0..31
_UNIFORM_6 = 18.47  # of 0..63
_UNIFORM_8 = 73.9  # of -128..127
_LEGACY = {Q.Q8_0: _UNIFORM_8, Q.Q4_0: _UNIFORM_4, Q.Q5_0: _UNIFORM_5, Q.Q5_1: _UNIFORM_5}
_UNIFORM_FP4 = 2.926  # of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with either sign
_SUB_SCALE = 48.0  # mean of the 6-bit sub-block scales drawn from 32..63, and of Q6_K's 8-bit ones from the same range


def random_rows(
    name: str, first_row: int, n_rows: int, n_cols: int, quant_type: QuantType, std: float, seed: int
) -> NDArray[np.uint8]:
    """uint8 rows `first_row`.. of the tensor `name` in `quant_type`, the same for the same arguments on every
    machine.
    """
    generator = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode()), first_row]))
    if quant_type in (Q.F32, Q.F16, Q.BF16):
        return _floats(generator, n_rows * n_cols, quant_type, std)
    n_blocks = n_rows * n_cols // block_size(quant_type)
    size = block_bytes(quant_type)
    words = generator.integers(0, 1 << 64, size=(n_blocks * size + 7) // 8, dtype=np.uint64)
    blocks = words.view(np.uint8)[: n_blocks * size].reshape(n_blocks, size)
    if quant_type is Q.MXFP4:
        blocks[:, 0] = _powers_of_two(generator, n_blocks, std / _UNIFORM_FP4)
    elif quant_type in _LEGACY:
        blocks[:, 0:2] = _half(std / _LEGACY[quant_type])
        if quant_type is Q.Q5_1:  # weights are scale * code + minimum, codes 0..31
            blocks[:, 2:4] = _half(-15.5 * std / _UNIFORM_5)
    elif quant_type in (Q.Q4_K, Q.Q5_K):
        _set_k_scales(blocks, std, *((_UNIFORM_4, 7.5) if quant_type is Q.Q4_K else (_UNIFORM_5, 15.5)))
    else:
        blocks[:, 192:208] = 32 + (blocks[:, 192:208] & 31)
        blocks[:, 208:210] = _half(std / (_UNIFORM_6 * _SUB_SCALE))
    return blocks.reshape(-1)


def _half(value: float) -> NDArray[np.uint8]:
    return np.array([value], dtype="<f2").view(np.uint8)


def _floats(generator: np.random.Generator, n: int, quant_type: QuantType, std: float) -> NDArray[np.uint8]:
    values = generator.standard_normal(n, dtype=np.float32)
    values *= np.float32(std)
    if quant_type is Q.F32:
        return values.view(np.uint8)
    if quant_type is Q.F16:
        return values.astype(np.float16).view(np.uint8)
    return np.ascontiguousarray(values.view(np.uint16)[1::2]).view(np.uint8)


def _powers_of_two(generator: np.random.Generator, n: int, scale: float) -> NDArray[np.uint8]:
    """Exponent bytes (127 is 1.0) of the two powers of two around `scale`, mixed so that their mean square is its."""
    low = int(np.floor(np.log2(scale)))
    share = (scale**2 - 4.0**low) / (3 * 4.0**low)  # of the larger: share * 4^(low + 1) + (1 - share) * 4^low
    exponents: NDArray[np.uint8] = (127 + low + (generator.random(n) < share)).astype(np.uint8)
    return exponents


def _set_k_scales(blocks: NDArray[np.uint8], std: float, spread: float, middle: float) -> None:
    """Make the 12 scale bytes of Q4_K or Q5_K hold sub-scales 32..63 with equal sub-minima, and dmin such that the
    mean is zero.

    Bytes 4..7 are the scales of sub-blocks 0..3 (low 6 bits) with the high bits of those of 4..7; 8..11 the same for
    the minima; 12..15 hold the low nibbles of scale and minimum of 4..7.
    """
    blocks[:, 4:8] = (blocks[:, 4:8] & 0x1F) | 0xA0
    blocks[:, 8:12] = blocks[:, 4:8]
    low = blocks[:, 12:16] & 0x0F
    blocks[:, 12:16] = low | (low << 4)
    scale = std / (spread * _SUB_SCALE)
    blocks[:, 0:2] = _half(scale)
    blocks[:, 2:4] = _half(scale * middle)
