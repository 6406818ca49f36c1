"""How gate and up of a feed-forward are joined, and biases added: one vector-IR function for each `GatedUnit`.

All have the arguments (gate, up, n, gate_bias, up_bias) and leave their result in gate, so that a kernel calls
whichever it is given; those without biases do not read the last two.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.backend import SILU, GatedUnit
from kernels.cpu.addresses import address
from kernels.cpu.features import TARGET, Target
from kernels.cpu.float_math import emit_sigmoid_divisor, for_lanes
from kernels.cpu.native import address_of
from kernels.cpu.native_call import call_native
from kernels.cpu.recycled import copy_of
from kernels.cpu.vector_ir import F32, Emitter, vec

N_ARGUMENTS = 5
_GELU_SLOPE, _GELU_CUBE = 1.5957691216057308, 0.044715  # gelu(x) = x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))


def unit_address(unit: GatedUnit, biased: bool, target: Target = TARGET) -> int:
    """Address of the function for `unit`. Raises ValueError for an unknown kind."""
    if unit.kind not in ("silu", "gelu", "clamped"):
        raise ValueError(f"gated unit {unit.kind!r}; there are silu, gelu, clamped")
    constants = f"_{unit.alpha}_{unit.limit}" if unit.kind == "clamped" else ""
    name = f"gated_{unit.kind}{constants}{'_biased' if biased else ''}"
    return address_of(name, N_ARGUMENTS, partial(emit_gated_unit, unit=unit, biased=biased), target)


def add_row_address(target: Target = TARGET) -> int:
    """Address of `void add_row(row, addend, n)`: row += addend."""
    return address_of("add_row", 3, emit_add_row, target)


def emit_gated_unit(
    e: Emitter, gate: Any, up: Any, n: Any, gate_bias: Any, up_bias: Any, unit: GatedUnit, biased: bool
) -> None:
    """gate[i] = unit(gate[i] + gate_bias[i], up[i] + up_bias[i]) for n >= 1 float32."""

    def step(lanes: int, at: Any) -> None:
        kind = vec(F32, lanes)
        g, u = (e.load(e.b.add(base, at), kind, 4) for base in (gate, up))
        if biased:
            g, u = (
                e.b.fadd(value, e.load(e.b.add(base, at), kind, 4)) for value, base in ((g, gate_bias), (u, up_bias))
            )
        e.store(_joined(e, g, u, unit), e.b.add(gate, at), 4)

    for_lanes(e, n, step)


def emit_add_row(e: Emitter, row: Any, addend: Any, n: Any) -> None:
    """row[i] += addend[i] for n >= 1 float32."""

    def step(lanes: int, at: Any) -> None:
        place = e.b.add(row, at)
        values = [e.load(base, vec(F32, lanes), 4) for base in (place, e.b.add(addend, at))]
        e.store(e.b.fadd(*values), place, 4)

    for_lanes(e, n, step)


def _joined(e: Emitter, g: Any, u: Any, unit: GatedUnit) -> Any:
    b, kind, lanes = e.b, g.type, g.type.count

    def c(value: float) -> Any:
        return e.splat(e.f32(value), lanes)

    inner = g
    if unit.kind == "gelu":
        inner = b.fmul(c(_GELU_SLOPE), e.fma(b.fmul(g, b.fmul(g, g)), c(_GELU_CUBE), g))
    elif unit.kind == "clamped":
        g = e.call("llvm.minimum", kind, [g, c(unit.limit)])
        inner = b.fmul(g, c(unit.alpha))
        u = e.call("llvm.minimum", kind, [e.call("llvm.maximum", kind, [u, c(-unit.limit)]), c(unit.limit)])
        u = b.fadd(u, c(1.0))
    return b.fmul(b.fdiv(g, emit_sigmoid_divisor(e, inner)), u)


@njit(nogil=True, cache=True)
def join_rows(function, gate, up):
    """gate = unit(gate, up) for contiguous float32 arrays of one size; function: that of a unit without biases."""
    call_native(function, address(gate), address(up), gate.size, 0, 0)


def join_halves(gate_up: np.ndarray, width: int, unit: GatedUnit = SILU, target: Target = TARGET) -> np.ndarray:
    """unit(gate, up) for float32 gate_up [T, gate width | up width]: fresh float32 [T, width]."""
    out = copy_of(gate_up[:, :width])
    join_rows(unit_address(unit, False, target), out, np.ascontiguousarray(gate_up[:, width:]))
    return out
