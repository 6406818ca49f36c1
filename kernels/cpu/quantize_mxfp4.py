"""MXFP4 blocks of 32 weights, bit for bit gguf-py's: a power of two as scale, and for each weight the nearest of 16
values (the first of two that are as near).
"""

from __future__ import annotations

import numpy as np
from gguf.quants import MXFP4
from numba import njit

_BLOCK, _BLOCK_BYTES = 32, 17
_VALUES = np.array(MXFP4.kvalues, np.float32)


@njit(nogil=True, cache=True, error_model="numpy")
def _largest(x, out):
    for b in range(x.shape[0]):
        largest = np.float32(0)
        for i in range(32):
            largest = max(largest, abs(x[b, i]))
        out[b] = largest


@njit(nogil=True, cache=True, error_model="numpy")
def _nearest(x, scales, values, out):
    """Low nibbles are the first 16 weights, high ones the last."""
    errors = np.empty(32, np.float32)
    codes = np.empty(32, np.uint8)
    for b in range(x.shape[0]):
        first = scales[b] * values[0]
        for i in range(32):
            errors[i] = abs(first - x[b, i])
            codes[i] = 0
        for k in range(1, 16):
            value = scales[b] * values[k]
            for i in range(32):
                error = abs(value - x[b, i])
                nearer = error < errors[i]
                errors[i] = error if nearer else errors[i]
                codes[i] = np.uint8(k) if nearer else codes[i]
        for i in range(16):
            out[b, 1 + i] = codes[i] | (codes[i + 16] << 4)


def quantize_mxfp4(x: np.ndarray) -> np.ndarray:
    """float32 [..] of whole blocks -> uint8 [n_blocks, 17]: exponent, 32 nibbles."""
    blocks = x.reshape(-1, _BLOCK)
    largest = np.empty(len(blocks), np.float32)
    _largest(blocks, largest)
    with np.errstate(divide="ignore"):
        exponents = np.where(largest > 0, np.floor(np.log2(largest)) - 2 + 127, 0).astype(np.uint8)
    out = np.empty((len(blocks), _BLOCK_BYTES), np.uint8)
    out[:, 0] = exponents
    _nearest(blocks, np.ascontiguousarray(MXFP4.e8m0_to_fp32_half(exponents), np.float32), _VALUES, out)
    return out
