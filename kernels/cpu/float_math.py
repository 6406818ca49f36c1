"""e^x and what is made of it for float32 lanes, and the loop over a row of them, emitted as plain vector IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.cpu.vector_ir import I32, Emitter, vec

_LANES = 8
_LARGEST_EXPONENT = 88.0  # of emit_exp

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
LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4


def emit_exp(e: Emitter, x: Any) -> Any:
    """e^x within 2 units in the last place for lanes of x <= 88; below -87 it is e^-87, some 1.6e-38. NaN stays NaN."""
    b, lanes = e.b, x.type.count

    def c(value: float) -> Any:
        return e.splat(e.f32(value), lanes)

    clamped = e.call("llvm.maximum", x.type, [x, c(-87.0)])
    n = e.call("llvm.rint", x.type, [b.fmul(clamped, c(LOG2_E))])
    r = e.fma(n, c(-_LN2_LOW), e.fma(n, c(-_LN2_HIGH), clamped))
    power = c(_EXP_TERMS[0])
    for term in _EXP_TERMS[1:]:
        power = e.fma(power, r, c(term))
    int_lanes = vec(I32, lanes)
    # fptosi of NaN is any value; the polynomial carries the NaN
    exponent = b.shl(b.add(b.fptosi(n, int_lanes), e.const(int_lanes, 127)), e.const(int_lanes, 23))
    return b.fmul(power, b.bitcast(exponent, x.type))


# 1 + r * (these, Horner, highest power first) is 2^r on |r| <= 1/2 within 2e-9 of it (least largest error)
_EXP2_TERMS = (
    1.5353361677e-4,
    1.3398874676e-3,
    9.6184373607e-3,
    5.5503324705e-2,
    2.4022647914e-1,
    6.9314720286e-1,
    1.0,
)


def emit_exp2(e: Emitter, x: Any) -> Any:
    """2^x within 1 unit in the last place for lanes of -126 <= x <= 127; below it is 0. NaN stays NaN."""
    b, lanes, int_lanes = e.b, x.type.count, vec(I32, x.type.count)
    n = e.call("llvm.rint", x.type, [x])
    r = b.fsub(x, n)
    power = e.splat(e.f32(_EXP2_TERMS[0]), lanes)
    for term in _EXP2_TERMS[1:]:
        power = e.fma(power, r, e.splat(e.f32(term), lanes))
    shifted = b.add(b.bitcast(power, int_lanes), b.shl(b.fptosi(n, int_lanes), e.const(int_lanes, 23)))
    is_zero = b.fcmp_ordered("<", x, e.splat(e.f32(-126.0), lanes))
    return b.select(is_zero, e.zero(x.type), b.bitcast(shifted, x.type))


def emit_sigmoid_divisor(e: Emitter, x: Any) -> Any:
    """1 + e^-x, by which a lane is divided to weigh it by sigmoid(x); 1 + e^88 for all x below -88. NaN stays NaN."""
    lanes = x.type.count
    limit = e.splat(e.f32(_LARGEST_EXPONENT), lanes)
    power = emit_exp(e, e.call("llvm.minimum", x.type, [e.b.fneg(x), limit]))
    return e.b.fadd(e.splat(e.f32(1.0), lanes), power)


def for_lanes(e: Emitter, n: Any, step: Callable[[int, Any], None]) -> None:
    """step(lanes, byte offset) over n >= 1 float32: 8 lanes at a time, then one by one with the same formula."""
    b = e.b

    def body(lanes: int) -> Callable[[Any, list[Any]], list[Any]]:
        def at(i: Any, _: list[Any]) -> list[Any]:
            step(lanes, b.mul(i, e.i64(4 * lanes)))
            return []

        return at

    n_vectors = b.udiv(n, e.i64(_LANES))
    e.loop_or_skip(n_vectors, [], body(_LANES))
    e.loop_or_skip(n, [], body(1), first=b.mul(n_vectors, e.i64(_LANES)))
