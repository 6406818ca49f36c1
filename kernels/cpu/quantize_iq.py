"""IQ4_NL: blocks of 32 weights, a half-precision scale and 4-bit places in a table of 16 unevenly spaced values.
Bit for bit what ggml's `quantize_iq4_nl` gives, with and without an importance matrix.

Its sums are taken weight after weight in float32, so lanes run over blocks, not over the weights of one: no
contraction, no reassociation. The codes are those of the scale before it is rounded to half precision.
"""

from __future__ import annotations

import numpy as np
from gguf.quants import IQ4_NL
from numba import njit

from kernels.cpu.quantize_importance import per_block

VALUES = np.array(IQ4_NL.kvalues, dtype=np.float32)
# Halfway between neighbours; what lies on a border belongs to the upper one.
BORDERS = (VALUES[1:] + VALUES[:-1]) / 2
GAPS = VALUES[1:] - VALUES[:-1]
_LOWEST = VALUES[0]
_TRIES = 7
_LANES = 16


@njit(nogil=True, cache=True, error_model="numpy")
def _load(x, importance, first, v, w):
    """Blocks from `first` on as columns of `v`, and in `w` how much each weight counts: x * x, or with a matrix the
    importance of its column times sqrt(2 * mean square of the block + x * x). Lanes beyond the last block are zero.
    """
    for lane in range(v.shape[1]):
        b = first + lane
        if b >= x.shape[0]:
            v[:, lane] = 0
            w[:, lane] = 0
            continue
        square = np.float32(0)
        for i in range(32):
            v[i, lane] = x[b, i]
            w[i, lane] = x[b, i] * x[b, i]
            square += w[i, lane]
        if importance.shape[0] > 0:
            square *= np.float32(2) / np.float32(32)
            for i in range(32):
                w[i, lane] = importance[b % importance.shape[0], i] * np.sqrt(square + w[i, lane])


@njit(nogil=True, cache=True, error_model="numpy")
def _largest(v, largest, signed):
    """Of every lane the largest magnitude and the first weight that has it."""
    largest[:] = 0
    signed[:] = 0
    for i in range(32):
        for lane in range(largest.size):
            is_larger = abs(v[i, lane]) > largest[lane]
            largest[lane] = abs(v[i, lane]) if is_larger else largest[lane]
            signed[lane] = v[i, lane] if is_larger else signed[lane]


@njit(nogil=True, cache=True, error_model="numpy")
def _sums(v, w, inverse, sum_xq, sum_q2):
    """Of every lane the sums of w q x and w q q, where q is the table's value nearest to inverse * x."""
    sum_xq[:] = 0
    sum_q2[:] = 0
    for i in range(32):
        for lane in range(_LANES):
            scaled = inverse[lane] * v[i, lane]
            q = _LOWEST
            for k in range(15):
                q += GAPS[k] if scaled >= BORDERS[k] else np.float32(0)
            weighted = w[i, lane] * q
            sum_xq[lane] += weighted * v[i, lane]
            sum_q2[lane] += weighted * q


@njit(nogil=True, cache=True, error_model="numpy")
def _search(x, importance, d):
    """Scale of every block: of several steps around its largest weight the one of least weighted error, by least
    squares; 0 where no weight reaches 1e-15.
    """
    zero = np.float32(0)
    lanes = _LANES
    v, w = np.empty((32, lanes), np.float32), np.empty((32, lanes), np.float32)
    largest, signed, inverse = np.empty(lanes, np.float32), np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    sum_xq, sum_q2 = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    best, found = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    for first in range(0, x.shape[0], lanes):
        _load(x, importance, first, v, w)
        _largest(v, largest, signed)
        # The first try has the largest weight at the table's positive end, the others around its negative one.
        for lane in range(lanes):
            inverse[lane] = np.float32(1) / (-signed[lane] / _LOWEST)
        _sums(v, w, inverse, sum_xq, sum_q2)
        for lane in range(lanes):
            found[lane] = sum_xq[lane] / sum_q2[lane] if sum_q2[lane] > zero else zero
            best[lane] = found[lane] * sum_xq[lane]
        for step in range(-_TRIES, _TRIES + 1):
            for lane in range(lanes):
                inverse[lane] = (np.float32(step) + _LOWEST) / signed[lane]
            _sums(v, w, inverse, sum_xq, sum_q2)
            for lane in range(lanes):
                if sum_q2[lane] > zero and sum_xq[lane] * sum_xq[lane] > best[lane] * sum_q2[lane]:
                    found[lane] = sum_xq[lane] / sum_q2[lane]
                    best[lane] = found[lane] * sum_xq[lane]
        for lane in range(min(lanes, x.shape[0] - first)):
            d[first + lane] = found[lane] if largest[lane] >= np.float32(1e-15) else zero


@njit(nogil=True, cache=True, error_model="numpy")
def _codes(x, borders, d, out):
    for b in range(x.shape[0]):
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for i in range(16):
            low = 0
            high = 0
            for k in range(15):
                low += inverse * x[b, i] >= borders[k]
                high += inverse * x[b, i + 16] >= borders[k]
            out[b, 2 + i] = low | high << 4


def quantize_iq4_nl(x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """float32 [..] of whole blocks -> uint8 [n, 18]: f16 scale, nibbles of weights i and 16 + i."""
    blocks = x.reshape(-1, 32)
    d = np.empty(blocks.shape[0], np.float32)
    _search(blocks, per_block(importance, 32), d)
    out = np.empty((blocks.shape[0], 18), np.uint8)
    out[:, :2] = d.astype("<f2").view(np.uint8).reshape(-1, 2)
    _codes(blocks, BORDERS, d, out)
    return out
