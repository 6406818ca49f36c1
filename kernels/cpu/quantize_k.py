"""Quantisers of the K types that have a scale and a minimum for each sub-block: Q4_K, Q5_K (8 sub-blocks of 32) and
Q2_K (16 of 16).

Method (the published idea of k-quants): for each sub-block try a range of step sizes; for each, round the weights to
codes and solve the weighted least-squares problem for scale and minimum given those codes; keep the pair of least
weighted error. The pairs are then quantised themselves against the super-block's largest; of each and its neighbours
the best under what is really stored is kept, and the codes are rounded again under it.
The error of a candidate follows from the sums of the least-squares problem, so each costs one pass over the sub-block.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu.quantize_importance import mean_squares, per_block, weigh

SUPER = 256
_FAST = {"reassoc", "nsz", "contract"}  # sums may be split into lanes; the inputs are finite


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def search_scales(x, importance, squares, sub, top, first_step, n_steps, mean_weight, scales, mins):
    """Best scale and minimum (stored negated: >= 0) of every sub-block of `sub` weights; codes 0 .. top.

    A weight counts as `importance` (with `squares`) says, see `quantize_importance`; where that is empty, `mean_weight`
    times the sub-block's root mean square plus its own magnitude. Steps tried: the full
    range over top + first_step, + 0.1, ... `n_steps` times, beside the full range over top.
    """
    # Local contiguous buffers: loops over them vectorise, loops over x[b, s * sub + i] do not.
    v = np.empty(sub, np.float32)
    w = np.empty(sub, np.float32)
    wx = np.empty(sub, np.float32)
    zero = np.float32(0)
    ceiling = np.float32(top)
    for b in range(x.shape[0]):
        for s in range(x.shape[1] // sub):
            square = zero
            low = zero  # a minimum above zero cannot be stored
            high = x[b, s * sub]
            for i in range(sub):
                v[i] = x[b, s * sub + i]
                square += v[i] * v[i]
                low = min(low, v[i])
                high = max(high, v[i])
            scales[b, s] = zero
            mins[b, s] = -low
            if high <= low:
                continue
            base = np.float32(mean_weight) * np.sqrt(square / np.float32(sub))
            sum_w = zero
            sum_x = zero
            sum_x2 = zero
            for i in range(sub):
                w[i] = base + abs(v[i])
            if importance.shape[0] > 0:
                weigh(importance, squares[b], b, s * sub, v, w)
            for i in range(sub):
                wx[i] = w[i] * v[i]
                sum_w += w[i]
                sum_x += wx[i]
                sum_x2 += wx[i] * v[i]
            best = np.inf
            for step in range(-1, n_steps):
                steps = ceiling if step < 0 else ceiling + np.float32(first_step) + np.float32(0.1) * np.float32(step)
                inverse = steps / (high - low)
                sum_l = zero
                sum_l2 = zero
                sum_xl = zero
                for i in range(sub):
                    code = min(max(np.rint(inverse * (v[i] - low)), zero), ceiling)
                    sum_l += w[i] * code
                    sum_l2 += w[i] * code * code
                    sum_xl += wx[i] * code
                error, scale, minimum = _solve(sum_w, sum_x, sum_x2, sum_l, sum_l2, sum_xl)
                if error < best:
                    best = error
                    scales[b, s] = scale
                    mins[b, s] = -minimum
                    low = np.float32(minimum)  # the next step starts from the better minimum
                    if high <= low:
                        break


@njit(nogil=True, cache=True, error_model="numpy")
def _solve(sum_w, sum_x, sum_x2, sum_l, sum_l2, sum_xl):
    """(weighted error, scale, minimum <= 0) of the least-squares line through codes l and weights x.

    In float64: sums nearly cancel.
    """
    sw, sx, sx2 = np.float64(sum_w), np.float64(sum_x), np.float64(sum_x2)
    sl, sl2, sxl = np.float64(sum_l), np.float64(sum_l2), np.float64(sum_xl)
    determinant = sw * sl2 - sl * sl
    if sl2 <= 0.0:
        return np.inf, 0.0, 0.0
    minimum = 1.0
    scale = 0.0
    if determinant > 0.0:
        scale = (sw * sxl - sx * sl) / determinant
        minimum = (sl2 * sx - sl * sxl) / determinant
    if minimum > 0.0:  # cannot be stored, or all codes are equal and any line through them does
        minimum = 0.0
        scale = sxl / sl2
    error = (
        sx2 + scale * scale * sl2 + minimum * minimum * sw + 2.0 * (scale * minimum * sl - scale * sxl - minimum * sx)
    )
    return error, scale, minimum


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def _codes(x, sub, top, steps, offsets, codes):
    """Codes under the stored scales: round((x + offset) / step), 0 where the step is 0."""
    for b in range(x.shape[0]):
        for s in range(x.shape[1] // sub):
            inverse = np.float32(1) / steps[b, s] if steps[b, s] > 0 else np.float32(0)
            for i in range(s * sub, (s + 1) * sub):
                code = np.rint((x[b, i] + offsets[b, s]) * inverse)
                codes[b, i] = np.uint8(min(max(code, np.float32(0)), np.float32(top)))


@njit(nogil=True, cache=True, error_model="numpy", fastmath=_FAST)
def _refine(x, importance, squares, sub, top, mean_weight, code_top, d, dmin, scale_codes, min_codes):
    """Move each stored scale and minimum by at most one to where the weighted error of the rounded weights is least."""
    v = np.empty(sub, np.float32)
    w = np.empty(sub, np.float32)
    zero = np.float32(0)
    ceiling = np.float32(top)
    for b in range(x.shape[0]):
        for s in range(x.shape[1] // sub):
            square = zero
            for i in range(sub):
                v[i] = x[b, s * sub + i]
                square += v[i] * v[i]
            base = np.float32(mean_weight) * np.sqrt(square / np.float32(sub))
            for i in range(sub):
                w[i] = base + abs(v[i])
            if importance.shape[0] > 0:
                weigh(importance, squares[b], b, s * sub, v, w)
            scale_code = np.int32(scale_codes[b, s])
            min_code = np.int32(min_codes[b, s])
            best = np.float32(np.inf)
            for scale_try in range(max(scale_code - 1, 0), min(scale_code + 1, code_top) + 1):
                for min_try in range(max(min_code - 1, 0), min(min_code + 1, code_top) + 1):
                    step = d[b] * np.float32(scale_try)
                    offset = dmin[b] * np.float32(min_try)
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


def _quantized_scales(scales: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """(half-precision step of each super-block as float16, uint8 multiples 0..top of it) for non-negative `scales`
    [n, n_sub].
    """
    largest = scales.max(axis=1)
    inverse = np.divide(np.float32(top), largest, out=np.zeros_like(largest), where=largest > 0)
    multiples = np.minimum(np.rint(scales * inverse[:, None]), top).astype(np.uint8)
    return (largest / np.float32(top)).astype("<f2"), multiples


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
):
    """(d, dmin as float16; scale and minimum multiples; codes) of every super-block of `x`."""
    blocks = x.reshape(-1, SUPER)
    own, squares = per_block(importance, SUPER), mean_squares(blocks, sigma)
    n_sub = SUPER // sub
    scales, mins = np.zeros((blocks.shape[0], n_sub), np.float32), np.zeros((blocks.shape[0], n_sub), np.float32)
    search_scales(blocks, own, squares, sub, top, first_step, n_steps, mean_weight, scales, mins)
    d, scale_codes = _quantized_scales(scales, scale_top)
    dmin, min_codes = _quantized_scales(mins, scale_top)
    halves = d.astype(np.float32), dmin.astype(np.float32)
    _refine(blocks, own, squares, sub, top, mean_weight, scale_top, *halves, scale_codes, min_codes)
    codes = np.empty(blocks.shape, np.uint8)
    steps, offsets = halves[0][:, None] * scale_codes, halves[1][:, None] * min_codes
    _codes(blocks, sub, top, steps, offsets, codes)
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
    d, dmin, scales, mins, codes = _quantize(x, importance, 16, 3, -0.5, 16, 0.0, 15, 1.0)
    out = np.empty((codes.shape[0], 84), np.uint8)
    out[:, :16] = scales | mins << 4
    quarters = codes.reshape(-1, 2, 4, 32)
    out[:, 16:80] = np.bitwise_or.reduce(quarters << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2).reshape(-1, 64)
    out[:, 80:82] = d.view(np.uint8).reshape(-1, 2)
    out[:, 82:84] = dmin.view(np.uint8).reshape(-1, 2)
    return out
