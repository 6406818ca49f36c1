"""Types with super-blocks of 256 weights: what their bytes mean, and the row dot against a q8_256 record.

A super-block is 8 groups of 32 byte lanes and 16 integer sub-scales (one per 16 weights, repeated where ggml has one
per 32):
    w = d * scale[j / 16] * q[j]  -  dmin * min[j / 16]
The offsets of Q3_K and Q6_K (q - 4, q - 32) are folded into `mins`, with dmin = d. Byte offsets:
    Q2_K   scales [16] @0 (low nibble scale, high nibble min), 2-bit [64] @16, d f16 @80, dmin f16 @82
    Q3_K   high bits [32] @0, 2-bit [64] @32, 6-bit scales [12] @96, d f16 @108
    Q4_K   d f16 @0, dmin f16 @2, 6-bit scales and mins [12] @4, nibbles [128] @16
    Q5_K   d f16 @0, dmin f16 @2, 6-bit scales and mins [12] @4, high bits [32] @16, nibbles [128] @48
    Q6_K   low nibbles [128] @0, high 2 bits [64] @128, scales int8 [16] @192, d f16 @208
    IQ4_XS d f16 @0, high scale bits u16 @2, low scale nibbles [4] @4, nibbles [128] @8
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.cpu.bit_fields import shifted
from kernels.cpu.dot_iq import IQ4_VALUES
from kernels.cpu.dot_legacy import nibbles
from kernels.cpu.vector_ir import F32, I8, I16, I32, V8F32, V8I32, V16I16, V32I8, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

_CHAINS = 2  # sums of a super-block: a dot product instruction takes 4 cycles


@dataclass(frozen=True, slots=True)
class SuperBlock:
    """One unpacked super-block: 8 groups of byte lanes `q` (0..63, or -127..127 if `signed`), int16 sub-scales [16],
    float32 d; `mins` int16 [16] with float32 dmin, or with dmin None where they share d, or None."""

    d: Any
    q: list[Any]
    scales: Any
    signed: bool = False
    mins: Any = None
    dmin: Any = None


def _words(e: Emitter, values: Sequence[Any]) -> Any:
    """32-bit integers as bytes."""
    packed = e.zero(vec(I32, len(values)))
    for i, value in enumerate(values):
        packed = e.b.insert_element(packed, value, e.i32(i))
    return e.b.bitcast(packed, vec(I8, 4 * len(values)))


def _scales_and_mins(e: Emitter, p: Any) -> tuple[Any, Any]:
    """Q4_K's and Q5_K's 12 bytes: 8 scales and 8 mins of 6 bits, each repeated for its two halves, as int16 [16]."""
    b = e.b
    w = [e.load(e.at(p, 4 * k), I32) for k in range(3)]

    def bits(word: Any, shift: int, mask: int) -> Any:
        return b.and_(b.lshr(word, e.i32(shift)) if shift else word, e.i32(mask))

    scale_high = b.or_(bits(w[2], 0, 0x0F0F0F0F), b.shl(bits(w[0], 6, 0x03030303), e.i32(4)))
    min_high = b.or_(bits(w[2], 4, 0x0F0F0F0F), b.shl(bits(w[1], 6, 0x03030303), e.i32(4)))
    twice = [j // 2 for j in range(16)]
    scales = _words(e, [bits(w[0], 0, 0x3F3F3F3F), scale_high])
    mins = _words(e, [bits(w[1], 0, 0x3F3F3F3F), min_high])
    return b.zext(e.shuffle(scales, twice), V16I16), b.zext(e.shuffle(mins, twice), V16I16)


def q4_k_groups(e: Emitter, p: Any) -> list[Any]:
    """The 8 groups of byte lanes of the super-block at `p`."""
    packed = [e.load(e.at(p, 16 + 32 * k), V32I8) for k in range(4)]
    return [shifted(e, packed[g // 2], 4 * (g % 2), 15) for g in range(8)]


def q5_k_groups(e: Emitter, p: Any) -> list[Any]:
    """As `q4_k_groups`, with the fifth bits."""
    high, packed = e.load(e.at(p, 16), V32I8), [e.load(e.at(p, 48 + 32 * k), V32I8) for k in range(4)]
    return [e.b.or_(shifted(e, packed[g // 2], 4 * (g % 2), 15), shifted(e, high, g - 4, 16)) for g in range(8)]


def iq4_xs_groups(e: Emitter, p: Any) -> list[Any]:
    """As `q4_k_groups`; these lanes are signed."""
    return [e.lookup(IQ4_VALUES, nibbles(e, [e.at(p, 8 + 16 * g)])) for g in range(8)]


def _q4_k(e: Emitter, p: Any) -> SuperBlock:
    scales, mins = _scales_and_mins(e, e.at(p, 4))
    q = q4_k_groups(e, p)
    return SuperBlock(e.half(p), q, scales, mins=mins, dmin=e.half(e.at(p, 2)))


def _q5_k(e: Emitter, p: Any) -> SuperBlock:
    scales, mins = _scales_and_mins(e, e.at(p, 4))
    q = q5_k_groups(e, p)
    return SuperBlock(e.half(p), q, scales, mins=mins, dmin=e.half(e.at(p, 2)))


def _q2_k(e: Emitter, p: Any) -> SuperBlock:
    packed = e.load(p, vec(I8, 16))
    scales, mins = (e.b.zext(shifted(e, packed, s, 15), V16I16) for s in (0, 4))
    q = []
    for g in range(8):
        q.append(shifted(e, e.load(e.at(p, 16 + 32 * (g // 4)), V32I8), 2 * (g % 4), 3))
    return SuperBlock(e.half(e.at(p, 80)), q, scales, mins=mins, dmin=e.half(e.at(p, 82)))


def _q3_k(e: Emitter, p: Any) -> SuperBlock:
    b = e.b
    w = [e.load(e.at(p, 96 + 4 * k), I32) for k in range(3)]
    low = [b.and_(b.lshr(w[k % 2], e.i32(4 * (k // 2))), e.i32(0x0F0F0F0F)) for k in range(4)]
    high = [b.shl(b.and_(b.lshr(w[2], e.i32(2 * k)), e.i32(0x03030303)), e.i32(4)) for k in range(4)]
    six_bits = _words(e, [b.or_(x, y) for x, y in zip(low, high, strict=True)])
    scales = b.sub(b.zext(six_bits, V16I16), e.const(V16I16, 32))
    bits = e.load(p, V32I8)
    q = []
    for g in range(8):
        two = shifted(e, e.load(e.at(p, 32 + 32 * (g // 4)), V32I8), 2 * (g % 4), 3)
        q.append(b.or_(two, shifted(e, bits, g - 2, 4)))
    return SuperBlock(e.half(e.at(p, 108)), q, scales, mins=b.shl(scales, e.const(V16I16, 2)))


def _q6_k(e: Emitter, p: Any) -> SuperBlock:
    scales = e.b.sext(e.load(e.at(p, 192), vec(I8, 16)), V16I16)
    q = []
    for g in range(8):
        half, quarter = g // 4, g % 4
        low = e.load(e.at(p, 64 * half + 32 * (quarter % 2)), V32I8)
        high = e.load(e.at(p, 128 + 32 * half), V32I8)
        q.append(e.b.or_(shifted(e, low, 4 * (quarter // 2), 15), shifted(e, high, 2 * quarter - 4, 48)))
    return SuperBlock(e.half(e.at(p, 208)), q, scales, mins=e.b.shl(scales, e.const(V16I16, 5)))


def _iq4_xs(e: Emitter, p: Any) -> SuperBlock:
    b = e.b
    low = e.shuffle(b.bitcast(e.load(e.at(p, 4), I32), vec(I8, 4)), [g // 2 for g in range(8)])
    low = b.and_(b.lshr(low, e.const(low.type, [0, 4] * 4)), e.const(low.type, 15))
    high = e.splat(e.load(e.at(p, 2), I16), 8)
    high = b.shl(
        b.and_(b.lshr(high, e.const(high.type, [2 * g for g in range(8)])), e.const(high.type, 3)),
        e.const(high.type, 4),
    )
    scales = b.sub(b.or_(b.zext(low, high.type), high), e.const(high.type, 32))
    q = iq4_xs_groups(e, p)
    return SuperBlock(e.half(p), q, e.shuffle(scales, [j // 2 for j in range(16)]), signed=True)


UNPACK: dict[QuantType, Callable[[Emitter, Any], SuperBlock]] = {
    QuantType.Q2_K: _q2_k,
    QuantType.Q3_K: _q3_k,
    QuantType.Q4_K: _q4_k,
    QuantType.Q5_K: _q5_k,
    QuantType.Q6_K: _q6_k,
    QuantType.IQ4_XS: _iq4_xs,
}


def row_dot(e: Emitter, quant_type: QuantType, row: Any, n_cols: Any, record: Any) -> Any:
    """Float32 dot of the row at address `row` with one q8_256 record. Within a super-block sums are exact
    integers: |sum| <= 256 * 63 * 127 * 127 < 2^29 for Q6_K, the largest."""
    b, unpack, size = e.b, UNPACK[quant_type], block_bytes(quant_type)
    bsum_base = b.add(record, n_cols)
    d_base = b.add(bsum_base, b.lshr(n_cols, e.i64(3)))

    def body(i: Any, sums: list[Any]) -> list[Any]:
        x_base, step = b.add(record, b.shl(i, e.i64(8))), b.mul(i, e.i64(size))
        dx = e.load(b.add(d_base, b.shl(i, e.i64(2))), F32, 4)
        bsum = e.load(b.add(bsum_base, b.shl(i, e.i64(5))), V16I16, 2)
        start = b.add(row, step)
        e.prefetch_weights(start, size)
        block = unpack(e, start)
        totals, apart = [e.zero(V8I32)] * _CHAINS, e.halves_apart(block.scales)
        for g, q in enumerate(block.q):
            x = e.load(e.at(x_base, 32 * g), V32I8)
            chain = g % _CHAINS
            totals[chain] = e.scaled_dot(totals[chain], q, x, e.group_scale(apart, g), block.signed)
        total = b.add(*totals)
        if block.mins is not None and block.dmin is None:
            total = b.sub(total, e.madd(block.mins, bsum))
        sums[0] = e.fma(b.sitofp(total, V8F32), e.splat(b.fmul(block.d, dx), 8), sums[0])
        if block.dmin is not None:
            low = b.sitofp(e.madd(block.mins, bsum), V8F32)
            sums[1] = e.fma(low, e.splat(b.fmul(block.dmin, dx), 8), sums[1])
        return sums

    products, minima = e.loop(b.lshr(n_cols, e.i64(8)), [e.zero(V8F32)] * 2, body)
    return e.reduce(b.fadd, b.fsub(products, minima), 8)
