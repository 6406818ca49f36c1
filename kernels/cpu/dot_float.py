"""F32, F16 and BF16 rows: the row dot against float32 activations, and nothing quantised."""

from __future__ import annotations

from typing import Any

from kernels.cpu.vector_ir import F16, F32, I16, I32, V8F32, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

FLOAT_TYPES = (QuantType.F32, QuantType.F16, QuantType.BF16)
_UNROLL = 4  # independent accumulators: a fused multiply-add takes 4 cycles


def load_floats(e: Emitter, quant_type: QuantType, address: Any, lanes: int = 8) -> Any:
    """`lanes` weights at `address` as float32."""
    if quant_type == QuantType.F32:
        return e.load(address, vec(F32, lanes))
    if quant_type == QuantType.F16:
        return e.b.fpext(e.load(address, vec(F16, lanes)), vec(F32, lanes))
    bits = e.b.zext(e.load(address, vec(I16, lanes)), vec(I32, lanes))
    return e.b.bitcast(e.b.shl(bits, e.const(bits.type, 16)), vec(F32, lanes))


def load_float(e: Emitter, quant_type: QuantType, address: Any) -> Any:
    """One weight at `address` as float32."""
    if quant_type == QuantType.F32:
        return e.load(address, F32)
    if quant_type == QuantType.F16:
        return e.half(address)
    return e.b.bitcast(e.b.shl(e.b.zext(e.load(address, I16), I32), e.i32(16)), F32)


def row_dot(e: Emitter, quant_type: QuantType, row: Any, n_cols: Any, record: Any) -> Any:
    """Float32 dot of the row at address `row` with the float32 row at `record`; any width: the tail goes one by one."""
    b, size, step = e.b, block_bytes(quant_type), 8 * _UNROLL
    n_whole = b.lshr(n_cols, e.i64(step.bit_length() - 1))

    def body(i: Any, sums: list[Any]) -> list[Any]:
        w_base, x_base = b.add(row, b.mul(i, e.i64(step * size))), b.add(record, b.mul(i, e.i64(step * 4)))
        for u in range(_UNROLL):
            w = load_floats(e, quant_type, e.at(w_base, 8 * u * size))
            sums[u] = e.fma(w, e.load(e.at(x_base, 32 * u), V8F32, 4), sums[u])
        return sums

    p, q, r, s = e.loop_or_skip(n_whole, [e.zero(V8F32)] * _UNROLL, body)
    total = e.reduce(b.fadd, b.fadd(b.fadd(p, q), b.fadd(r, s)), 8)

    def tail(i: Any, values: list[Any]) -> list[Any]:
        x = e.load(b.add(record, b.shl(i, e.i64(2))), F32, 4)
        return [e.fma(load_float(e, quant_type, b.add(row, b.mul(i, e.i64(size)))), x, values[0])]

    (total,) = e.loop_or_skip(n_cols, [total], tail, first=b.shl(n_whole, e.i64(step.bit_length() - 1)))
    return total
