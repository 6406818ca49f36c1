"""The step of a super-block, of which the scales (or minima) of its sub-blocks are stored as small multiples.

A sub-block's error grows by slope * (change of its scale)^2, where slope is the sum of w l l over its codes l. So the
step that serves all scales best is found from the scales alone; what it is worth is then measured on the weights.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.cpu.quantize_k_search import FAST

_TRIES = 9
_TENTH = np.float32(0.1)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=FAST)
def search_steps(scales, slopes, anchor, low, high, d):
    """Into `d` [n] the step of least cost for `scales` [n, n_sub], as multiples low .. high: several are tried around
    the one that makes the largest scale `anchor` of it, each refined by least squares. 0 where all scales are 0.
    """
    zero = np.float32(0)
    bottom = np.float32(low)
    top = np.float32(high)
    for b in range(scales.shape[0]):
        largest = zero
        for s in range(scales.shape[1]):
            if abs(scales[b, s]) > abs(largest):
                largest = scales[b, s]
        d[b] = zero
        best = np.inf
        for step in range(-_TRIES, _TRIES + 1):
            if largest == zero:
                break
            inverse = (np.float32(anchor) + _TENTH * np.float32(step)) / largest
            sum_sm = zero
            sum_m2 = zero
            for s in range(scales.shape[1]):
                multiple = min(max(np.rint(inverse * scales[b, s]), bottom), top)
                sum_sm += slopes[b, s] * multiple * scales[b, s]
                sum_m2 += slopes[b, s] * multiple * multiple
            candidate = sum_sm / sum_m2 if sum_m2 > zero else zero
            cost = zero
            for s in range(scales.shape[1]):
                gap = candidate * min(max(np.rint(inverse * scales[b, s]), bottom), top) - scales[b, s]
                cost += slopes[b, s] * gap * gap
            if cost < best:
                best = cost
                d[b] = candidate


def as_stored(steps: np.ndarray) -> np.ndarray:
    """`steps` as half precision keeps them, in float32."""
    with np.errstate(over="ignore"):
        return steps.astype("<f2").astype(np.float32)


def multiples(scales: np.ndarray, d: np.ndarray, low: int, high: int) -> np.ndarray:
    """float32 [n, n_sub] nearest multiples low .. high of `d` [n]; 0 where that is 0."""
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    return np.clip(np.rint(scales * inverse[:, None]), low, high)


def keep_better(kept: tuple[np.ndarray, ...], tried: tuple[np.ndarray, ...]) -> None:
    """Copy super-blocks from `tried` to `kept` where their error, the first array of each, is lower."""
    better = tried[0] < kept[0]
    for old, new in zip(kept, tried, strict=True):
        old[better] = new[better]
