"""Quantisers of the K types with a signed scale and no minimum: Q6_K and Q3_K (16 sub-blocks of 16 weights).

For each sub-block several step sizes around the largest weight are tried; given the rounded codes l the best scale is
sum(w x l) / sum(w l l) with weights w = x * x
(for Q3_K, whose steps are coarse, plus half the sub-block's mean square), and the step that leaves the least weighted
error is kept. The super-block's step is then searched for the scales; each scale is moved by one where that is better
under what is really stored, the step is fitted to the codes that come of it, and the codes are rounded again.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu.quantize_importance import NONE, mean_squares, per_block, weigh
from kernels.cpu.quantize_k_search import FAST, SUPER
from kernels.cpu.quantize_k_steps import as_stored, keep_better, multiples, search_steps

SUB = 16
_FITS = 2  # of the step to the codes


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def _weights_of(v, importance, squares, b, start, mean_weight, w):
    """Fill `w` with how much each of the weights `v`, which begin at `start` of block b, counts: as `importance` (with
    `squares`) says, see `quantize_importance`; where that is empty, `mean_weight` times their mean square plus its own.
    """
    if importance.shape[0] > 0:
        weigh(importance, squares[b], b, start, v, w)
        return
    square = np.float32(0)
    for i in range(v.size):
        square += v[i] * v[i]
    base = np.float32(mean_weight) * square / np.float32(v.size)
    for i in range(v.size):
        w[i] = base + v[i] * v[i]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def search_scales(x, importance, squares, sub, half, mean_weight, scales, slopes):
    """Best scale of every sub-block for codes -half .. half - 1 (`sub` weights each, a run-time number so that LLVM
    vectorises the loops over them instead of unrolling), and its slope (see `quantize_k_steps`). The largest weight's
    code is -half at the middle step. Weights count as `_weights_of` says.
    """
    # Local contiguous buffers: loops over them vectorise, loops over x[b, s * sub + i] do not.
    v = np.empty(sub, np.float32)
    w = np.empty(sub, np.float32)
    wx = np.empty(sub, np.float32)
    zero = np.float32(0)
    bottom = np.float32(-half)
    top = np.float32(half - 1)
    for b in range(x.shape[0]):
        for s in range(x.shape[1] // sub):
            low = zero
            high = zero
            for i in range(sub):
                v[i] = x[b, s * sub + i]
                low = min(low, v[i])
                high = max(high, v[i])
            _weights_of(v, importance, squares, b, s * sub, mean_weight, w)
            for i in range(sub):
                wx[i] = w[i] * v[i]
            signed = high if high > -low else low
            scales[b, s] = zero
            slopes[b, s] = zero
            if abs(signed) < np.float32(1e-15):
                continue
            best = zero
            for step in range(-9, 10):
                inverse = (bottom - np.float32(0.1) * np.float32(step)) / signed
                sum_xl = zero
                sum_l2 = zero
                for i in range(sub):
                    code = min(max(np.rint(inverse * v[i]), bottom), top)
                    sum_xl += wx[i] * code
                    sum_l2 += w[i] * code * code
                scale = sum_xl / sum_l2 if sum_l2 > zero else zero
                if scale * sum_xl > best:
                    best = scale * sum_xl
                    scales[b, s] = scale
                    slopes[b, s] = sum_l2


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def _refine(x, importance, squares, sub, half, mean_weight, scale_half, d, scale_codes, errors, fitted):
    """Move each stored scale by at most one to where the weighted error of the rounded weights is least. Also that
    error of each super-block, and the step that fits the codes best.
    """
    v = np.empty(sub, np.float32)
    w = np.empty(sub, np.float32)
    zero = np.float32(0)
    bottom = np.float32(-half)
    top = np.float32(half - 1)
    for b in range(x.shape[0]):
        errors[b] = zero
        fit_xl = zero
        fit_l2 = zero
        for s in range(x.shape[1] // sub):
            for i in range(sub):
                v[i] = x[b, s * sub + i]
            _weights_of(v, importance, squares, b, s * sub, mean_weight, w)
            best_xl = zero
            best_l2 = zero
            scale_code = np.int32(scale_codes[b, s])
            best = np.float32(np.inf)
            for attempt in range(max(scale_code - 1, -scale_half), min(scale_code + 1, scale_half - 1) + 1):
                step = d[b] * np.float32(attempt)
                inverse = np.float32(1) / step if step != zero else zero
                error = zero
                sum_xl = zero
                sum_l2 = zero
                for i in range(sub):
                    code = min(max(np.rint(v[i] * inverse), bottom), top)
                    gap = step * code - v[i]
                    error += w[i] * gap * gap
                    sum_xl += w[i] * v[i] * code
                    sum_l2 += w[i] * code * code
                if error < best:
                    best = error
                    best_xl = sum_xl * np.float32(attempt)
                    best_l2 = sum_l2 * np.float32(attempt * attempt)
                    scale_codes[b, s] = attempt
            errors[b] += best
            fit_xl += best_xl
            fit_l2 += best_l2
        fitted[b] = fit_xl / fit_l2 if fit_l2 > zero else d[b]


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def _codes(x, half, steps, codes):
    """Codes under the stored scales, shifted to 0 .. 2 * half - 1; `half` where the step is 0."""
    bottom = np.float32(-half)
    top = np.float32(half - 1)
    for b in range(x.shape[0]):
        for s in range(SUPER // SUB):
            inverse = np.float32(1) / steps[b, s] if steps[b, s] != 0 else np.float32(0)
            for i in range(s * SUB, (s + 1) * SUB):
                code = min(max(np.rint(x[b, i] * inverse), bottom), top)
                codes[b, i] = np.uint8(code + np.float32(half))


def _quantize(
    x: np.ndarray, importance: np.ndarray | None, half: int, mean_weight: float, scale_half: int, sigma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(d as float16 [n], signed scale codes -scale_half .. scale_half - 1 [n, 16], codes [n, 256])."""
    blocks = x.reshape(-1, SUPER)
    weighing = per_block(importance, SUPER), mean_squares(blocks, sigma), SUB, half, mean_weight
    scales, slopes = np.empty((2, len(blocks), SUPER // SUB), np.float32)
    search_scales(blocks, *weighing, scales, slopes)
    d = np.empty(len(blocks), np.float32)
    search_steps(scales, slopes, -scale_half, -scale_half, scale_half - 1, d)
    d = as_stored(d)
    scale_codes = multiples(scales, d, -scale_half, scale_half - 1).astype(np.int8)
    errors, fitted = np.empty((2, len(blocks)), np.float32)
    _refine(blocks, *weighing, scale_half, d, scale_codes, errors, fitted)
    kept = errors, d, scale_codes, fitted
    for _ in range(_FITS):
        tried = np.empty_like(errors), as_stored(fitted), scale_codes.copy(), np.empty_like(fitted)
        _refine(blocks, *weighing, scale_half, tried[1], tried[2], tried[0], tried[3])
        keep_better(kept, tried)
    codes = np.empty(blocks.shape, np.uint8)
    _codes(blocks, half, d[:, None] * scale_codes, codes)
    return d.astype("<f2"), scale_codes, codes


def quantize_q6_k(x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """float32 [..] of whole super-blocks -> uint8 [n, 210]: 128 bytes of low nibbles, 64 of high bit pairs, 16 int8
    scales, d.

    In each half of 128 weights: byte i (0..31) has the nibbles of weights i and 64 + i, byte 32 + i those of 32 + i
    and 96 + i; high byte i the upper bits of weights i, 32 + i, 64 + i, 96 + i from its lowest pair up.
    """
    d, scale_codes, codes = _quantize(x, importance, 32, 0.0, 128, NONE)
    out = np.empty((codes.shape[0], 210), np.uint8)
    quarters = codes.reshape(-1, 2, 4, 32)
    low = quarters & 15
    out[:, :128] = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(-1, 128)
    high = (quarters >> 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    out[:, 128:192] = np.bitwise_or.reduce(high, axis=2).reshape(-1, 64)
    out[:, 192:208] = scale_codes.view(np.uint8)
    out[:, 208:210] = d.view(np.uint8).reshape(-1, 2)
    return out


def quantize_q3_k(x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """-> uint8 [n, 110]: 32 bytes of third bits, 64 of 2-bit codes (as in Q2_K), 12 of 6-bit scales, d.

    Bit k of third-bit byte i belongs to weight 32 * k + i. Scales are stored plus 32: bytes 0-7 hold the low nibbles
    of scale i and 8 + i, bytes 8-11 the upper bit pairs of scales i, 4 + i, 8 + i, 12 + i.
    """
    d, scale_codes, codes = _quantize(x, importance, 4, 0.5, 32, 2.0)
    out = np.empty((codes.shape[0], 110), np.uint8)
    eighths = codes.reshape(-1, 8, 32)
    out[:, :32] = np.bitwise_or.reduce((eighths >> 2) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    quarters = (codes & 3).reshape(-1, 2, 4, 32)
    out[:, 32:96] = np.bitwise_or.reduce(quarters << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2).reshape(-1, 64)
    stored = (scale_codes + 32).astype(np.uint8)
    out[:, 96:104] = (stored[:, :8] & 15) | (stored[:, 8:] & 15) << 4
    upper = (stored >> 4).reshape(-1, 4, 4) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    out[:, 104:108] = np.bitwise_or.reduce(upper, axis=1)
    out[:, 108:110] = d.view(np.uint8).reshape(-1, 2)
    return out
