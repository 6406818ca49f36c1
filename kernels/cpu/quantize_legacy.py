"""Round-to-nearest quantisers of the 4- and 5-bit types of 32 weights, bit for bit ggml's reference (no contraction, no
reassociation).

Codes of a block's first 16 weights go into low nibbles, of the last 16 into high ones; the fifth bits of Q5 are one
32-bit word.
"""

from __future__ import annotations

import numpy as np
from numba import njit

_BLOCK = 32


def _blocks(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, _BLOCK)


def _put_halves(out: np.ndarray, at: int, values: np.ndarray) -> None:
    """Store float32 `values`, one a block, as half precision at byte `at` of every block."""
    out[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


@njit(nogil=True, cache=True, error_model="numpy")
def _signed_codes(x, codes, d, half):
    """Codes 0 .. 2 * half - 1 around `half`, scaled so that the weight of largest magnitude becomes exactly 0."""
    top = np.int32(2 * half - 1)
    centre = np.float32(half) + np.float32(0.5)
    for b in range(x.shape[0]):
        largest = np.float32(0)
        signed = np.float32(0)
        for i in range(32):
            if abs(x[b, i]) > largest:
                largest = abs(x[b, i])
                signed = x[b, i]
        d[b] = signed / np.float32(-half)
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for i in range(32):
            codes[b, i] = min(top, np.int32(x[b, i] * inverse + centre))


@njit(nogil=True, cache=True, error_model="numpy")
def _offset_codes(x, codes, d, m, top):
    """Codes 0 .. top from the block's minimum up."""
    for b in range(x.shape[0]):
        low = x[b, 0]
        high = x[b, 0]
        for i in range(1, 32):
            low = min(low, x[b, i])
            high = max(high, x[b, i])
        d[b] = (high - low) / np.float32(top)
        m[b] = low
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for i in range(32):
            codes[b, i] = min(np.int32(top), np.int32((x[b, i] - low) * inverse + np.float32(0.5)))


@njit(nogil=True, cache=True)
def _pack_nibbles(codes, out, at):
    for b in range(codes.shape[0]):
        for i in range(16):
            out[b, at + i] = (codes[b, i] & 15) | ((codes[b, i + 16] & 15) << 4)


@njit(nogil=True, cache=True)
def _pack_fifth_bits(codes, out, at):
    for b in range(codes.shape[0]):
        for k in range(4):
            bits = 0
            for i in range(8):
                bits |= ((codes[b, 8 * k + i] >> 4) & 1) << i
            out[b, at + k] = bits


def pack_signed(codes: np.ndarray, d: np.ndarray, half: int) -> np.ndarray:
    """uint8 codes [n, 32] and float32 scales [n] as Q4_0 (`half` 8) or Q5_0 (16) blocks."""
    out = np.empty((codes.shape[0], 18 if half == 8 else 22), np.uint8)
    _pack_nibbles(codes, out, out.shape[1] - 16)
    if half == 16:
        _pack_fifth_bits(codes, out, 2)
    _put_halves(out, 0, d)
    return out


def pack_offset(codes: np.ndarray, d: np.ndarray, m: np.ndarray, top: int) -> np.ndarray:
    """uint8 codes [n, 32], float32 scales and minima [n] as Q4_1 (`top` 15) or Q5_1 (31) blocks."""
    out = np.empty((codes.shape[0], 20 if top == 15 else 24), np.uint8)
    _pack_nibbles(codes, out, out.shape[1] - 16)
    if top == 31:
        _pack_fifth_bits(codes, out, 4)
    _put_halves(out, 0, d)
    _put_halves(out, 2, m)
    return out


def _quantize_signed(x: np.ndarray, half: int) -> np.ndarray:
    blocks = _blocks(x)
    d = np.empty(blocks.shape[0], np.float32)
    codes = np.empty(blocks.shape, np.uint8)
    _signed_codes(blocks, codes, d, half)
    return pack_signed(codes, d, half)


def _quantize_offset(x: np.ndarray, top: int) -> np.ndarray:
    blocks = _blocks(x)
    d, m = np.empty(blocks.shape[0], np.float32), np.empty(blocks.shape[0], np.float32)
    codes = np.empty(blocks.shape, np.uint8)
    _offset_codes(blocks, codes, d, m, top)
    return pack_offset(codes, d, m, top)


def quantize_q4_0(x: np.ndarray) -> np.ndarray:
    """-> uint8 [n_blocks, 18]: f16 scale, 16 bytes of nibbles."""
    return _quantize_signed(x, 8)


def quantize_q5_0(x: np.ndarray) -> np.ndarray:
    """-> uint8 [n_blocks, 22]: f16 scale, 4 bytes of fifth bits, 16 bytes of nibbles."""
    return _quantize_signed(x, 16)


def quantize_q4_1(x: np.ndarray) -> np.ndarray:
    """-> uint8 [n_blocks, 20]: f16 scale, f16 minimum, 16 bytes of nibbles."""
    return _quantize_offset(x, 15)


def quantize_q5_1(x: np.ndarray) -> np.ndarray:
    """-> uint8 [n_blocks, 24]: f16 scale, f16 minimum, 4 bytes of fifth bits, 16 bytes of nibbles."""
    return _quantize_offset(x, 31)
