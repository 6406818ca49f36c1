"""Scales and minima of sub-blocks, for the K types that have both and for Q4_1 and Q5_1 under an importance matrix.

Method (the published idea of k-quants): for each sub-block try a range of step sizes; for each, round the weights to
codes and solve the weighted least-squares problem for scale and minimum given those codes; keep the pair of least
weighted error. The error of a candidate follows from the sums of that problem, so each costs one pass over the
sub-block.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu.quantize_importance import weigh

SUPER = 256
FAST = {"reassoc", "nsz", "contract"}  # sums may be split into lanes; the inputs are finite


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def weights_of(v, importance, squares, b, start, mean_weight, w):
    """Fill `w` with how much each of the weights `v`, which begin at `start` of block b, counts: as `importance` (with
    `squares`) says, see `quantize_importance`; where that is empty, `mean_weight` times their root mean square plus its
    own magnitude.
    """
    if importance.shape[0] > 0:
        weigh(importance, squares[b], b, start, v, w)
        return
    square = np.float32(0)
    for i in range(v.size):
        square += v[i] * v[i]
    base = np.float32(mean_weight) * np.sqrt(square / np.float32(v.size))
    for i in range(v.size):
        w[i] = base + abs(v[i])


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def search_scales(
    x, importance, squares, sub, top, first_step, n_steps, mean_weight, scales, mins, scale_slopes, min_slopes
):
    """Best scale and minimum (stored negated: >= 0) of every sub-block of `sub` weights; codes 0 .. top. Also the
    slopes of both (see `quantize_k_steps`).

    Weights count as `weights_of` says. Steps tried: the full range over top + first_step, + 0.1, ... `n_steps` times,
    beside the full range over top.
    """
    # Local contiguous buffers: loops over them vectorise, loops over x[b, s * sub + i] do not.
    v = np.empty(sub, np.float32)
    w = np.empty(sub, np.float32)
    wx = np.empty(sub, np.float32)
    zero = np.float32(0)
    ceiling = np.float32(top)
    for b in range(x.shape[0]):
        for s in range(x.shape[1] // sub):
            low = zero  # a minimum above zero cannot be stored
            high = x[b, s * sub]
            for i in range(sub):
                v[i] = x[b, s * sub + i]
                low = min(low, v[i])
                high = max(high, v[i])
            weights_of(v, importance, squares, b, s * sub, mean_weight, w)
            sum_w = zero
            sum_x = zero
            sum_x2 = zero
            for i in range(sub):
                wx[i] = w[i] * v[i]
                sum_w += w[i]
                sum_x += wx[i]
                sum_x2 += wx[i] * v[i]
            scales[b, s] = zero
            mins[b, s] = -low
            scale_slopes[b, s] = zero
            min_slopes[b, s] = sum_w
            if high <= low:
                continue
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
                    scale_slopes[b, s] = sum_l2
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
