"""ln(1 + e^x) without overflow."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """max(x, 0) + ln(1 + e^-|x|)."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))
