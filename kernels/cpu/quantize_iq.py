"""IQ4_NL: blocks of 32 weights, a half-precision scale and 4-bit places in a table of 16 unevenly spaced values."""

from __future__ import annotations

import numpy as np
from gguf.quants import IQ4_NL
from numba import njit

from kernels.cpu.quantize_importance import mean_squares, per_block, weigh

VALUES = np.array(IQ4_NL.kvalues, dtype=np.float32)
_BORDERS = (VALUES[1:] + VALUES[:-1]) / 2
_TRIES = 7
_FAST = {"reassoc", "nsz", "contract"}


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def _search(x, importance, squares, values, borders, d):
    """Best scale of every block: several steps around the largest weight, each refined by least squares with weights
    x * x, or those of `importance` (with `squares`) where that is not empty.
    """
    zero = np.float32(0)
    w = np.empty(32, np.float32)
    for b in range(x.shape[0]):
        largest = zero
        signed = zero
        for i in range(32):
            if abs(x[b, i]) > largest:
                largest = abs(x[b, i])
                signed = x[b, i]
        d[b] = zero
        if largest < np.float32(1e-15):
            continue
        for i in range(32):
            w[i] = x[b, i] * x[b, i]
        if importance.shape[0] > 0:
            weigh(importance, squares[b], b, 0, x[b], w)
        best = zero
        for step in range(-_TRIES, _TRIES + 2):
            # The last try turns the table round: the largest weight at its positive end.
            inverse = (np.float32(step) + values[0]) / signed if step <= _TRIES else -values[0] / signed
            sum_xq = zero
            sum_q2 = zero
            for i in range(32):
                scaled = inverse * x[b, i]
                place = 0
                for k in range(15):
                    place += scaled > borders[k]
                q = values[place]
                sum_xq += w[i] * q * x[b, i]
                sum_q2 += w[i] * q * q
            if sum_q2 > zero and sum_xq * sum_xq > best * sum_q2:
                best = sum_xq * sum_xq / sum_q2
                d[b] = sum_xq / sum_q2


@njit(nogil=True, cache=True, error_model="numpy")
def _codes(x, borders, d, out):
    for b in range(x.shape[0]):
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for i in range(16):
            low = 0
            high = 0
            for k in range(15):
                low += inverse * x[b, i] > borders[k]
                high += inverse * x[b, i + 16] > borders[k]
            out[b, 2 + i] = low | high << 4


def quantize_iq4_nl(x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """float32 [..] of whole blocks -> uint8 [n, 18]: f16 scale, nibbles of weights i and 16 + i."""
    blocks = x.reshape(-1, 32)
    d = np.empty(blocks.shape[0], np.float32)
    _search(blocks, per_block(importance, 32), mean_squares(blocks, 2.0), VALUES, _BORDERS, d)
    halves = d.astype("<f2")
    out = np.empty((blocks.shape[0], 18), np.uint8)
    out[:, :2] = halves.view(np.uint8).reshape(-1, 2)
    _codes(blocks, _BORDERS, halves.astype(np.float32), out)
    return out
