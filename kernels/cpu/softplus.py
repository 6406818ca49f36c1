"""ln(1 + e^x) without overflow, inside numba code."""

from __future__ import annotations

import math

from numba import njit


@njit(nogil=True, cache=True)
def softplus(x):
    """max(x, 0) + ln(1 + e^-|x|)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
