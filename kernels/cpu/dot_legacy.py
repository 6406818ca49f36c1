"""Types with blocks of 32 weights: what their bytes mean, and the row dot against a q8_32 record.

A block is `d * q + m` with q as 32 byte lanes. Layouts (bytes from the block's start):
    Q8_0   d f16, q int8 [32]                                        w = d * q
    Q4_0   d f16, nibbles [16]                                       w = d * (n - 8)
    Q4_1   d f16, m f16, nibbles [16]                                w = d * n + m
    Q5_0   d f16, high bits u32, nibbles [16]                        w = d * (n + 16 * bit - 16)
    Q5_1   d f16, m f16, high bits u32, nibbles [16]                 w = d * (n + 16 * bit) + m
    IQ4_NL d f16, nibbles [16]                                       w = d * table[n]
    MXFP4  e u8, nibbles [16]                                        w = 2^(e - 128) * table[n]
Low nibbles are weights 0..15, high nibbles 16..31; bit j of the high bits belongs to weight j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.cpu.dot_iq import IQ4_VALUES, MXFP4_VALUES, e8m0_half
from kernels.cpu.vector_ir import F32, I1, I8, I32, V8F32, V8I32, V32I8, Emitter, vec
from kernels.quant_types import QuantType, block_bytes


@dataclass(frozen=True, slots=True)
class Block32:
    """One unpacked block: float32 scale `d`, byte lanes `q` (`signed` or 0..127), float32 minimum `m` or None."""

    d: Any
    q: Any
    signed: bool
    m: Any = None


def nibbles(e: Emitter, address: Any) -> Any:
    """16 bytes at `address` as 32 lanes: low nibbles, then high nibbles."""
    packed = e.load(address, vec(I8, 16))
    low = e.b.and_(packed, e.const(packed.type, 15))
    return e.concat(low, e.b.lshr(packed, e.const(packed.type, 4)))


def _with_high_bits(e: Emitter, low: Any, address: Any) -> Any:
    """Add 16 where the bit of the u32 at `address` is set."""
    bits = e.b.bitcast(e.load(address, I32), vec(I1, 32))
    return e.b.or_(low, e.b.select(bits, e.const(V32I8, 16), e.zero(V32I8)))


def _minus(e: Emitter, q: Any, offset: int) -> Any:
    return e.b.sub(q, e.const(V32I8, offset))


def _q8_0(e: Emitter, p: Any) -> Block32:
    return Block32(e.half(p), e.load(e.at(p, 2), V32I8), True)


def _q4_0(e: Emitter, p: Any) -> Block32:
    return Block32(e.half(p), _minus(e, nibbles(e, e.at(p, 2)), 8), True)


def _q4_1(e: Emitter, p: Any) -> Block32:
    return Block32(e.half(p), nibbles(e, e.at(p, 4)), False, e.half(e.at(p, 2)))


def _q5_0(e: Emitter, p: Any) -> Block32:
    q = _with_high_bits(e, nibbles(e, e.at(p, 6)), e.at(p, 2))
    return Block32(e.half(p), _minus(e, q, 16), True)


def _q5_1(e: Emitter, p: Any) -> Block32:
    q = _with_high_bits(e, nibbles(e, e.at(p, 8)), e.at(p, 4))
    return Block32(e.half(p), q, False, e.half(e.at(p, 2)))


def _iq4_nl(e: Emitter, p: Any) -> Block32:
    return Block32(e.half(p), e.lookup(IQ4_VALUES, nibbles(e, e.at(p, 2))), True)


def _mxfp4(e: Emitter, p: Any) -> Block32:
    return Block32(e8m0_half(e, p), e.lookup(MXFP4_VALUES, nibbles(e, e.at(p, 1))), True)


UNPACK: dict[QuantType, Callable[[Emitter, Any], Block32]] = {
    QuantType.Q8_0: _q8_0,
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q5_0: _q5_0,
    QuantType.Q5_1: _q5_1,
    QuantType.IQ4_NL: _iq4_nl,
    QuantType.MXFP4: _mxfp4,
}


def row_dots(e: Emitter, quant_type: QuantType, rows: Sequence[Any], n_cols: Any, record: Any) -> list[Any]:
    """Float32 dots of the rows at addresses `rows` with one q8_32 record, one block of each row at a time."""
    b, unpack, size = e.b, UNPACK[quant_type], block_bytes(quant_type)
    d_base = b.add(record, n_cols)
    s_base = b.add(d_base, b.lshr(n_cols, e.i64(3)))

    def body(i: Any, sums: list[Any]) -> list[Any]:
        x = e.load(b.add(record, b.shl(i, e.i64(5))), V32I8)
        dx = e.load(b.add(d_base, b.shl(i, e.i64(2))), F32, 4)
        step = b.mul(i, e.i64(size))
        for r, row in enumerate(rows):
            block = unpack(e, b.add(row, step))
            products = b.sitofp(e.dot(e.zero(V8I32), block.q, x, block.signed), V8F32)
            sums[2 * r] = e.fma(products, e.splat(b.fmul(block.d, dx), 8), sums[2 * r])
            if block.m is not None:
                s = e.load(b.add(s_base, b.shl(i, e.i64(2))), F32, 4)
                sums[2 * r + 1] = e.fma(block.m, s, sums[2 * r + 1])
        return sums

    start = [e.zero(V8F32), e.zero(F32)] * len(rows)
    sums = e.loop(b.lshr(n_cols, e.i64(5)), start, body)
    return [b.fadd(e.reduce(b.fadd, sums[2 * r], 8), sums[2 * r + 1]) for r in range(len(rows))]
