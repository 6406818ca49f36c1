"""The sigmoid that gates, units and convolutions share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x) in float32, by the exponential of a number that is not positive: nothing overflows; NaN stays."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)
