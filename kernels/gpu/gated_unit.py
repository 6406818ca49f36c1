"""How gate and up become one, inside expert kernels: every kind of `GatedUnit`."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.backend import GatedUnit
from kernels.gpu.sigmoid import sigmoid

UNITS = {"silu": 0, "gelu": 1, "clamped": 2}


@triton.jit
def join(gate, up, alpha, limit, UNIT: tl.constexpr):
    """unit(gate, up) elementwise in float32, without overflow for large numbers; NaN stays."""
    if UNIT == 0:
        return gate * sigmoid(gate) * up
    elif UNIT == 1:
        # 0.5 (1 + tanh z) = sigmoid(2 z), z = sqrt(2 / pi) (g + 0.044715 g^3)
        z2 = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        return gate * sigmoid(z2) * up
    else:
        low = tl.where(gate > limit, limit, gate)
        high = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        return low * sigmoid(alpha * low) * (high + 1.0)


def unit_arguments(unit: GatedUnit) -> tuple[int, float, float]:
    """(UNIT, alpha, limit) for a kernel. Raises ValueError for an unknown kind."""
    if unit.kind not in UNITS:
        raise ValueError(f"gated unit {unit.kind!r}; there are {', '.join(UNITS)}")
    return UNITS[unit.kind], unit.alpha, unit.limit
