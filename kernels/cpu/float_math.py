"""e^x for float32 lanes, emitted as plain vector IR."""

from __future__ import annotations

from typing import Any

from kernels.cpu.vector_ir import I32, Emitter, vec

# Cephes expf: Horner coefficients for e^r on |r| <= ln(2) / 2, and ln 2 split so that n * _LN2_HIGH is exact
_EXP_TERMS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
    1.0,
    1.0,
)
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4


def emit_exp(e: Emitter, x: Any) -> Any:
    """e^x within 2 units in the last place for lanes of x <= 88; below -87 it is e^-87, some 1.6e-38. NaN stays NaN."""
    b, lanes = e.b, x.type.count

    def c(value: float) -> Any:
        return e.splat(e.f32(value), lanes)

    clamped = e.call("llvm.maximum", x.type, [x, c(-87.0)])
    n = e.call("llvm.rint", x.type, [b.fmul(clamped, c(_LOG2_E))])
    r = e.fma(n, c(-_LN2_LOW), e.fma(n, c(-_LN2_HIGH), clamped))
    power = c(_EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        power = e.fma(power, r, c(term))
    int_lanes = vec(I32, lanes)
    # fptosi of NaN is any value; the polynomial carries the NaN
    exponent = b.shl(b.add(b.fptosi(n, int_lanes), e.const(int_lanes, 127)), e.const(int_lanes, 23))
    return b.fmul(power, b.bitcast(exponent, x.type))
