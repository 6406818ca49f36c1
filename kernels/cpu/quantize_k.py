"""Quantisers of the K types that have a scale and a minimum for each sub-block: Q4_K, Q5_K (8 sub-blocks of 32) and
Q2_K (16 of 16).

Scales and minima come from `quantize_k_search`. Here the steps that both are stored in multiples of are searched for
them; each multiple is moved by one where that is better under what is really stored, the two steps are fitted to the
codes that come of it, and the codes are rounded again.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu.quantize_importance import mean_squares, per_block
from kernels.cpu.quantize_k_search import FAST, SUPER, search_scales, weights_of
from kernels.cpu.quantize_k_steps import as_stored, keep_better, multiples, search_steps


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def _codes(x, sub, top, steps, offsets, codes):
    """Codes under the stored scales: round((x + offset) / step), 0 where the step is 0."""
    for b in range(x.shape[0]):
        for s in range(x.shape[1] // sub):
            inverse = np.float32(1) / steps[b, s] if steps[b, s] > 0 else np.float32(0)
            for i in range(s * sub, (s + 1) * sub):
                code = np.rint((x[b, i] + offsets[b, s]) * inverse)
                codes[b, i] = np.uint8(min(max(code, np.float32(0)), np.float32(top)))


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def _refine(x, importance, squares, sub, top, mean_weight, code_top, steps, scale_codes, min_codes, errors, fitted):
    """Move the stored scale or the stored minimum of each sub-block by at most one to where the weighted error of the
    rounded weights is least. Also that error of each super-block, and the pair of steps that fits the codes best.
    """
    v = np.empty(sub, np.float32)
    w = np.empty(sub, np.float32)
    zero = np.float32(0)
    ceiling = np.float32(top)
    sums = np.empty(5)
    for b in range(x.shape[0]):
        d, dmin = steps[b]
        errors[b] = zero
        sums[:] = 0.0
        for s in range(x.shape[1] // sub):
            for i in range(sub):
                v[i] = x[b, s * sub + i]
            weights_of(v, importance, squares, b, s * sub, mean_weight, w)
            scale_code = np.int32(scale_codes[b, s])
            min_code = np.int32(min_codes[b, s])
            best = np.float32(np.inf)
            for move in range(5):
                scale_try = scale_code + (move == 1) - (move == 2)
                min_try = min_code + (move == 3) - (move == 4)
                if min(scale_try, min_try) < 0 or max(scale_try, min_try) > code_top:
                    continue
                step = d * np.float32(scale_try)
                offset = dmin * np.float32(min_try)
                inverse = np.float32(1) / step if step > zero else zero
                error = zero
                for i in range(sub):
                    code = min(max(np.rint((v[i] + offset) * inverse), zero), ceiling)
                    gap = step * code - offset - v[i]
                    error += w[i] * gap * gap
                if error < best:
                    best = error
                    scale_codes[b, s] = scale_try
                    min_codes[b, s] = min_try
            errors[b] += best
            _add(v, w, ceiling, d, dmin, np.float32(scale_codes[b, s]), np.float32(min_codes[b, s]), sums)
        fitted[b] = _fit(sums, d, dmin)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def _add(v, w, ceiling, d, dmin, scale_code, min_code, sums):
    """Add a sub-block to `sums`: of w p p, w p q, w q q, w p x and w q x, where x should be d p - dmin q."""
    zero = np.float32(0)
    step = d * scale_code
    offset = dmin * min_code
    inverse = np.float32(1) / step if step > zero else zero
    sum_w = zero
    sum_x = zero
    sum_l = zero
    sum_l2 = zero
    sum_xl = zero
    for i in range(v.size):
        code = min(max(np.rint((v[i] + offset) * inverse), zero), ceiling)
        weighted = w[i] * code
        sum_w += w[i]
        sum_x += w[i] * v[i]
        sum_l += weighted
        sum_l2 += weighted * code
        sum_xl += weighted * v[i]
    p, q = np.float64(scale_code), np.float64(min_code)
    sums[0] += sum_l2 * p * p
    sums[1] += sum_l * p * q
    sums[2] += sum_w * q * q
    sums[3] += sum_xl * p
    sums[4] += sum_x * q


@njit(nogil=True, cache=True, error_model="numpy")
def _fit(sums, d, dmin):
    """The steps (>= 0) of least error for the `sums` of `_add`; as they are where the sums do not determine them."""
    pp, pq, qq, px, qx = sums
    if qq == 0.0:
        return np.float32(px / pp) if pp > 0.0 and px > 0.0 else d, dmin
    determinant = pp * qq - pq * pq
    if determinant > 0.0:
        step = (px * qq - pq * qx) / determinant
        offset = (pq * px - pp * qx) / determinant
        if step > 0.0 and offset >= 0.0:
            return np.float32(step), np.float32(offset)
    return d, dmin


def _quantize(
    x: np.ndarray,
    importance: np.ndarray | None,
    sub: int,
    top: int,
    first_step: float,
    n_steps: int,
    mean_weight: float,
    scale_top: int,
    sigma: float = 2.0,
) -> tuple[np.ndarray, ...]:
    """(d, dmin as float16; scale and minimum multiples; codes) of every super-block of `x`."""
    blocks = x.reshape(-1, SUPER)
    weighing = per_block(importance, SUPER), mean_squares(blocks, sigma), sub, top
    scales, mins, scale_slopes, min_slopes = np.zeros((4, len(blocks), SUPER // sub), np.float32)
    search_scales(blocks, *weighing, first_step, n_steps, mean_weight, scales, mins, scale_slopes, min_slopes)
    steps = np.empty((len(blocks), 2), np.float32)
    search_steps(scales, scale_slopes, scale_top, 0, scale_top, steps[:, 0])
    search_steps(mins, min_slopes, scale_top, 0, scale_top, steps[:, 1])
    steps = as_stored(steps)
    scale_codes = multiples(scales, steps[:, 0], 0, scale_top).astype(np.uint8)
    min_codes = multiples(mins, steps[:, 1], 0, scale_top).astype(np.uint8)
    errors, fitted = np.empty(len(blocks), np.float32), np.empty_like(steps)
    _refine(blocks, *weighing, mean_weight, scale_top, steps, scale_codes, min_codes, errors, fitted)
    tried = np.empty_like(errors), as_stored(fitted), scale_codes.copy(), min_codes.copy()
    _refine(blocks, *weighing, mean_weight, scale_top, *tried[1:], tried[0], np.empty_like(fitted))
    keep_better((errors, steps, scale_codes, min_codes), tried)
    codes = np.empty(blocks.shape, np.uint8)
    _codes(blocks, sub, top, steps[:, :1] * scale_codes, steps[:, 1:] * min_codes, codes)
    d, dmin = np.ascontiguousarray(steps.T, "<f2")
    return d, dmin, scale_codes, min_codes, codes


def _pack_head(out: np.ndarray, d: np.ndarray, dmin: np.ndarray, scales: np.ndarray, mins: np.ndarray) -> None:
    """The 16 bytes that begin Q4_K and Q5_K: d, dmin, and 8 scales and 8 minima of 6 bits in 12 bytes.

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in 6 bits, and above them the upper 2 bits of 4-7; bytes 8-11 their
    lower 4.
    """
    out[:, 0:2] = d.view(np.uint8).reshape(-1, 2)
    out[:, 2:4] = dmin.view(np.uint8).reshape(-1, 2)
    out[:, 4:8] = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    out[:, 8:12] = mins[:, :4] | (mins[:, 4:] >> 4 << 6)
    out[:, 12:16] = (scales[:, 4:] & 15) | (mins[:, 4:] & 15) << 4


def quantize_q4_k(x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """float32 [..] of whole super-blocks -> uint8 [n, 144]: head, then 4 x 32 bytes, each the nibbles of two
    sub-blocks.
    """
    d, dmin, scales, mins, codes = _quantize(x, importance, 32, 15, -1.0, 21, 1.0, 63)
    out = np.empty((codes.shape[0], 144), np.uint8)
    _pack_head(out, d, dmin, scales, mins)
    pairs = codes.reshape(-1, 4, 2, 32)
    out[:, 16:] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return out


def quantize_q5_k(x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """-> uint8 [n, 176]: head, 32 bytes of fifth bits (bit s of byte i: weight i of sub-block s), then nibbles as in
    Q4_K.
    """
    d, dmin, scales, mins, codes = _quantize(x, importance, 32, 31, -0.5, 16, 1.0, 63)
    out = np.empty((codes.shape[0], 176), np.uint8)
    _pack_head(out, d, dmin, scales, mins)
    by_sub = codes.reshape(-1, 8, 32)
    out[:, 16:48] = np.bitwise_or.reduce((by_sub >> 4) << np.arange(8, dtype=np.uint8)[None, :, None], axis=1)
    low = (codes & 15).reshape(-1, 4, 2, 32)
    out[:, 48:] = (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128)
    return out


def quantize_q2_k(x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """-> uint8 [n, 84]: 16 bytes (scale | minimum << 4), 64 bytes of 2-bit codes, d, dmin.

    Byte i of each half's 32 code bytes holds weights i, 32 + i, 64 + i, 96 + i of that half in its bit pairs from the
    lowest.
    """
    d, dmin, scales, mins, codes = _quantize(x, importance, 16, 3, -0.5, 16, 0.1, 15, 1.0)
    out = np.empty((codes.shape[0], 84), np.uint8)
    out[:, :16] = scales | mins << 4
    quarters = codes.reshape(-1, 2, 4, 32)
    out[:, 16:80] = np.bitwise_or.reduce(quarters << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2).reshape(-1, 64)
    out[:, 80:82] = d.view(np.uint8).reshape(-1, 2)
    out[:, 82:84] = dmin.view(np.uint8).reshape(-1, 2)
    return out
