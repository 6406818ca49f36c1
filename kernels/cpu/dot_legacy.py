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

from llvmlite import ir

from kernels.cpu.dot_iq import IQ4_VALUES, MXFP4_VALUES, e8m0_half
from kernels.cpu.vector_ir import F16, F32, I1, I8, I32, PREFETCH_BYTES, V8F32, V8I32, V32I8, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

_CHAINS = (
    5  # sums of a row: four of products, since one fused multiply-add takes 4 cycles, and one of minima or offsets
)


@dataclass(frozen=True, slots=True)
class Block32:
    """One unpacked block: float32 scale `d`, byte lanes `q` (`signed` or 0..127), float32 minimum `m` or None."""

    d: Any
    q: Any
    signed: bool
    m: Any = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How a type stores a block: w = d * (codes - offset) + m. `codes` are 0..127, or -128..127 if `signed`; the
    scale d and the minimum m are float16 at d_at and m_at, or d is an e8m0 byte."""

    codes: Callable[[Emitter, Any], Any]
    d_at: int = 0
    m_at: int | None = None
    signed: bool = False
    offset: int = 0
    e8m0: bool = False


def nibbles(e: Emitter, address: Any) -> Any:
    """16 bytes at `address` as 32 lanes: low nibbles, then high nibbles."""
    packed = e.load(address, vec(I8, 16))
    low = e.b.and_(packed, e.const(packed.type, 15))
    return e.concat(low, e.b.lshr(packed, e.const(packed.type, 4)))


def _five_bits(e: Emitter, low: Any, high: Any) -> Any:
    """The nibbles at `low`, plus 16 where the bit of the u32 at `high` is set."""
    bits = e.b.bitcast(e.load(high, I32), vec(I1, 32))
    return e.b.or_(nibbles(e, low), e.b.select(bits, e.const(V32I8, 16), e.zero(V32I8)))


_MXFP4_OFFSET = max(MXFP4_VALUES)
_MXFP4_CODES = tuple(value + _MXFP4_OFFSET for value in MXFP4_VALUES)

LAYOUTS: dict[QuantType, Layout] = {
    QuantType.Q8_0: Layout(lambda e, p: e.load(e.at(p, 2), V32I8), signed=True),
    QuantType.Q4_0: Layout(lambda e, p: nibbles(e, e.at(p, 2)), offset=8),
    QuantType.Q4_1: Layout(lambda e, p: nibbles(e, e.at(p, 4)), m_at=2),
    QuantType.Q5_0: Layout(lambda e, p: _five_bits(e, e.at(p, 6), e.at(p, 2)), offset=16),
    QuantType.Q5_1: Layout(lambda e, p: _five_bits(e, e.at(p, 8), e.at(p, 4)), m_at=2),
    QuantType.IQ4_NL: Layout(lambda e, p: e.lookup(IQ4_VALUES, nibbles(e, e.at(p, 2))), signed=True),
    QuantType.MXFP4: Layout(
        lambda e, p: e.lookup(_MXFP4_CODES, nibbles(e, e.at(p, 1))), offset=_MXFP4_OFFSET, e8m0=True
    ),
}


def _scales(e: Emitter, layout: Layout, blocks: Sequence[Any], at: int) -> Any:
    """The scales (or minima) at byte `at` of the blocks, as float32 lanes; converted together, which is most of their
    cost."""
    kind = vec(I8 if layout.e8m0 else F16, len(blocks))
    packed = ir.Constant(kind, ir.Undefined)
    for i, p in enumerate(blocks):
        packed = e.b.insert_element(packed, e.load(e.at(p, at), kind.element), e.i32(i))
    return e8m0_half(e, packed) if layout.e8m0 else e.b.fpext(packed, vec(F32, len(blocks)))


def _unpack(quant_type: QuantType) -> Callable[[Emitter, Any], Block32]:
    layout = LAYOUTS[quant_type]

    def unpack(e: Emitter, p: Any) -> Block32:
        q = layout.codes(e, p)
        if layout.offset:
            q = e.b.sub(q, e.const(V32I8, layout.offset))
        d = e.lane(_scales(e, layout, [p], layout.d_at), 0)
        m = None if layout.m_at is None else e.half(e.at(p, layout.m_at))
        return Block32(d, q, layout.signed or layout.offset > 0, m)

    return unpack


UNPACK: dict[QuantType, Callable[[Emitter, Any], Block32]] = {t: _unpack(t) for t in LAYOUTS}


def row_dots(e: Emitter, quant_type: QuantType, rows: Sequence[Any], n_cols: Any, record: Any) -> list[Any]:
    """Float32 dots of the rows at addresses `rows` with one q8_32 record, 8 blocks a step, then the rest one by one.

    sum of d * dx * (codes . q)  +  sum of m * s, or  -  offset * sum of d * s, where s = dx * sum of q.
    """
    b, layout, size = e.b, LAYOUTS[quant_type], block_bytes(quant_type)
    d_base = b.add(record, n_cols)
    s_base = b.add(d_base, b.lshr(n_cols, e.i64(3)))
    n_blocks = b.lshr(n_cols, e.i64(5))

    def steps(width: int) -> Callable[[Any, list[Any]], list[Any]]:
        def body(i: Any, sums: list[Any]) -> list[Any]:
            first = b.mul(i, e.i64(width))
            x_base, at = b.add(record, b.shl(first, e.i64(5))), b.shl(first, e.i64(2))
            dx, s = (e.load(b.add(base, at), vec(F32, width), 4) for base in (d_base, s_base))
            for r, row in enumerate(rows):
                start = b.add(row, b.mul(first, e.i64(size)))
                for line in range(0, width * size, 64):
                    e.prefetch(e.at(start, PREFETCH_BYTES + line))
                blocks = [e.at(start, size * j) for j in range(width)]
                d = _scales(e, layout, blocks, layout.d_at)
                scale, mine = b.fmul(d, dx), _CHAINS * r
                for j, p in enumerate(blocks):
                    x = e.load(e.at(x_base, 32 * j), V32I8)
                    products = e.dot(e.zero(V8I32), layout.codes(e, p), x, layout.signed)
                    chain = mine + j % (_CHAINS - 1)
                    sums[chain] = e.fma(b.sitofp(products, V8F32), e.shuffle(scale, [j] * 8), sums[chain])
                if layout.offset or layout.m_at is not None:
                    factor = d if layout.m_at is None else _scales(e, layout, blocks, layout.m_at)
                    last = mine + _CHAINS - 1
                    sums[last] = e.fma(e.widened(factor, 8), e.widened(s, 8), sums[last])
            return sums

        return body

    sums = [e.zero(V8F32)] * (_CHAINS * len(rows))
    n_wide = b.lshr(n_blocks, e.i64(3))
    sums = e.loop_or_skip(n_wide, sums, steps(8))
    sums = e.loop_or_skip(n_blocks, sums, steps(1), first=b.shl(n_wide, e.i64(3)))
    factor = e.splat(e.f32(-float(layout.offset) if layout.offset else 1.0), 8)
    results = []
    for r in range(len(rows)):
        *chains, low = sums[_CHAINS * r : _CHAINS * (r + 1)]
        total = e.fma(low, factor, b.fadd(b.fadd(chains[0], chains[1]), b.fadd(chains[2], chains[3])))
        results.append(e.reduce(b.fadd, total, 8))
    return results
