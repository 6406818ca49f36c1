"""The row dots of Q2_K and Q3_K where a dot takes any unsigned bytes and 512-bit vectors: elsewhere that of dot_k.

A sub-scale belongs to 16 weights, one 128-bit lane, and a weight has 4 or 8 codes: so a lane holds the products of its
sub-scale and every code as bytes, a shuffle looks them up, and sub-scales cost nothing further. Layouts are in dot_k:
    Q2_K  products are scale * q, 0..45
    Q3_K  products are (scale - 32) * (q - 4) + 124, 0..252; the 124 times the sum of all activations goes off first
Activations are copied so that those of group g and of group 4 + g lie together, as their bits do in a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernels.cpu import dot_k
from kernels.cpu.bit_fields import parities, shifted
from kernels.cpu.vector_ir import F16, F32, I8, I16, I32, I64, V8F32, V16I16, V32I8, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

_V64I8, _V32I16, _V16I32, _V16F32 = vec(I8, 64), vec(I16, 32), vec(I32, 16), vec(F32, 16)
_OFFSET = 124
TABLED = (QuantType.Q2_K, QuantType.Q3_K)


def arranged(e: Emitter, quant_type: QuantType, n_cols: Any, record: Any) -> Any:
    """What `row_dot` takes for a q8_256 record: (record, addresses of its int8 by groups and of where Q3_K's sums of
    products start), the addresses None where dot_k does it."""
    if e.isa != "avx512vnni":
        return record, None, None
    b, groups = e.b, e.scratch_of(n_cols)
    starts = e.scratch_of(n_cols, 4) if quant_type == QuantType.Q3_K else None
    pair_base = b.add(record, b.add(b.add(n_cols, b.lshr(n_cols, e.i64(3))), b.lshr(n_cols, e.i64(6))))

    def copy(i: Any, _: list[Any]) -> list[Any]:
        x, place = (b.add(base, b.shl(i, e.i64(8))) for base in (record, groups))
        for g in range(4):
            both = e.concat(e.load(e.at(x, 32 * g), V32I8), e.load(e.at(x, 32 * g + 128), V32I8))
            e.store(both, e.at(place, 64 * g), 64)
        if starts is not None:
            at = b.shl(i, e.i64(4))
            sums = b.sext(e.load(b.add(pair_base, at), vec(I16, 8), 2), vec(I32, 8))
            sums = b.mul(sums, e.const(sums.type, -_OFFSET))
            e.store(b.add(e.shuffle(sums, range(4)), e.shuffle(sums, range(4, 8))), b.add(starts, at), 16)
        return []

    e.loop(b.lshr(n_cols, e.i64(8)), [], copy)
    return record, groups, starts


def _by_word(e: Emitter, scales: Any, groups: Sequence[int]) -> Any:
    """The 16 byte sub-scales as words, eight a 128-bit lane: word w of each lane is that of group groups[w] in lanes 0
    and 1 (its two halves of 16 weights), of group 4 + groups[w] in lanes 2 and 3."""
    places = [8 * (lane // 2) + 2 * g + lane % 2 for lane in range(4) for g in groups]
    zero = e.zero(scales.type)
    return e.b.bitcast(e.shuffle(scales, [i for place in places for i in (place, 16)], zero), _V32I16)


def _two(low: int, high: int) -> int:
    """A word of two bytes, as a signed number."""
    return (low + 256 * high + 0x8000) % 0x10000 - 0x8000


def _q2_k_products(e: Emitter, p: Any, groups: Any, _: Any) -> Any:
    """int32 [16] that add up to the sum of scale * q * activation of the super-block at `p`; byte 4 g + q of a table
    is that of group g."""
    b = e.b
    scales = e.b.and_(e.load(p, vec(I8, 16)), e.const(vec(I8, 16), 15))
    words = _by_word(e, scales, [w // 2 for w in range(8)])
    table = b.bitcast(b.mul(words, e.const(_V32I16, [_two(0, 1), _two(2, 3)] * 16)), _V64I8)
    packed, total = e.load(e.at(p, 16), _V64I8), e.zero(_V16I32)
    for g in range(4):
        products = e.lookup_in_lanes(table, shifted(e, packed, 2 * g, 3, 4 * g))
        total = e.dot(total, products, e.load(e.at(groups, 64 * g), _V64I8, 64), False)
    return total


def _q3_k_products(e: Emitter, p: Any, groups: Any, start: Any) -> Any:
    """As `_q2_k_products`, from int32 [4] at `start` on. Groups 0 and 2 share a table, byte q or 8 + q; groups 1 and 3
    another, whose index has the lower two bits of q on top, where the block has them, group 3 in bit 1, and the third
    bit of q in bit 0. So an index is bits of the block and of what `parities` makes of its high bits, merged."""
    b = e.b
    words = _q3_k_scales(e, p)
    even = _signed_table(e, _by_word(e, words, [0] * 4 + [2] * 4), [2 * (w % 4) for w in range(8)], 1)
    odd = _signed_table(e, _by_word(e, words, [1, 3] * 4), [w // 2 for w in range(8)], 4)
    packed, bits = e.load(e.at(p, 32), _V64I8), e.load(p, V32I8)
    both = e.concat(bits, bits)
    upper = b.bitcast(b.lshr(b.bitcast(packed, _V32I16), e.const(_V32I16, 4)), _V64I8)
    total = e.widened(e.load(start, vec(I32, 4), 16), 16)
    for g, low in ((0, packed), (2, upper)):
        # bit 2 from bit g of the high bits, bit 0 from bit g + 1; from bits 4 higher in the second half
        rows = [[1 << (g + k + 1), 0, 1 << (g + k)] for k in (0, 4) for _ in range(4)]
        high = parities(e, both, rows, 0 if g == 0 else 2 + 8)
        for table, mask, at in ((even, 3, 64 * g), (odd, 12, 64 * g + 64)):
            products = e.lookup_in_lanes(table, e.merged(mask, low, high))
            total = e.dot(total, products, e.load(e.at(groups, at), _V64I8, 64), False)
    return total


def _signed_table(e: Emitter, words: Any, codes: Sequence[int], step: int) -> Any:
    """Bytes (scale - 32) * (q - 4) + 124, two of each word: for q = codes[w] and codes[w] + step, of word w of a lane.
    Both are 0..255, so that the word's product, modulo 2^16, is the two side by side."""
    b = e.b
    factors = [_two(q - 4, q + step - 4) for q in codes]
    addends = [_two(_OFFSET - 32 * (q - 4), _OFFSET - 32 * (q + step - 4)) for q in codes]
    found = b.mul(words, e.const(_V32I16, factors * 4))
    return b.bitcast(b.add(found, e.const(_V32I16, addends * 4)), _V64I8)


def _q3_k_scales(e: Emitter, p: Any) -> Any:
    """The 16 sub-scales, 0..63: nibbles of bytes 96..103 of the block and, as bits 4 and 5, pairs of bits of bytes
    104..107."""
    b, around = e.b, e.load(e.at(p, 94), vec(I8, 16))  # 16 bytes from 96 on would leave the block
    low = b.bitcast(e.shuffle(around, [*range(2, 10)] * 2), vec(I64, 2))
    low = b.bitcast(b.lshr(low, e.const(low.type, [0, 4])), around.type)
    high = b.bitcast(e.shuffle(around, [*range(10, 14)] * 4), vec(I32, 4))
    high = b.bitcast(e.call("llvm.fshl", high.type, [high, high, e.const(high.type, [4, 2, 0, 30])]), around.type)
    return b.or_(b.and_(low, e.const(low.type, 0x0F)), b.and_(high, e.const(high.type, 0x30)))


def _q2_k_minima(e: Emitter, p: Any, bsum: Any) -> Any:
    """float32 [8] that add up to the sum of min * activation."""
    mins = e.b.zext(shifted(e, e.load(p, vec(I8, 16)), 4, 15), V16I16)
    return e.b.sitofp(e.madd(mins, e.load(bsum, V16I16, 2)), V8F32)


_PRODUCTS: dict[QuantType, Callable[[Emitter, Any, Any, Any], Any]] = {
    QuantType.Q2_K: _q2_k_products,
    QuantType.Q3_K: _q3_k_products,
}
_D_AT = {QuantType.Q2_K: 80, QuantType.Q3_K: 108}


def row_dot(e: Emitter, quant_type: QuantType, row: Any, n_cols: Any, record: Any) -> Any:
    """Float32 dot of the row at address `row` with one q8_256 record, `arranged`. Within a super-block sums are exact
    integers: |sum| <= 256 * 252 * 127 < 2^23."""
    record, groups, starts = record
    if groups is None:
        return dot_k.row_dot(e, quant_type, row, n_cols, record)
    b, size, has_minima = e.b, block_bytes(quant_type), quant_type == QuantType.Q2_K
    bsum_base = b.add(record, n_cols)
    d_base = b.add(bsum_base, b.lshr(n_cols, e.i64(3)))
    stage = e.scratch(16)

    def body(i: Any, sums: list[Any]) -> list[Any]:
        p = b.add(row, b.mul(i, e.i64(size)))
        e.prefetch_weights(p, size)
        dx = e.splat(e.load(b.add(d_base, b.shl(i, e.i64(2))), F32, 4), 4)
        # by way of memory a scale is spread over the lanes by its load, which costs no vector instruction
        e.store(b.fmul(_scales(e, e.at(p, _D_AT[quant_type]), has_minima), dx), stage, 16)
        start = None if starts is None else b.add(starts, b.shl(i, e.i64(4)))
        found = _PRODUCTS[quant_type](e, p, b.add(groups, b.shl(i, e.i64(8))), start)
        e.barrier()
        sums[0] = e.fma(b.sitofp(found, _V16F32), e.splat(e.load(stage, F32, 4), 16), sums[0])
        if has_minima:
            low = _q2_k_minima(e, p, b.add(bsum_base, b.shl(i, e.i64(5))))
            sums[1] = e.fma(low, e.splat(e.load(e.at(stage, 4), F32, 4), 8), sums[1])
        return sums

    products, minima = e.loop(b.lshr(n_cols, e.i64(8)), [e.zero(_V16F32), e.zero(V8F32)], body)
    total = b.fadd(e.shuffle(products, range(8)), e.shuffle(products, range(8, 16)))
    return e.reduce(b.fadd, b.fsub(total, minima), 8)


def _scales(e: Emitter, p: Any, two: bool) -> Any:
    """float32 [4] of the half-floats at `p`, of which the first or the first two count."""
    b = e.b
    packed = e.load(p, I32 if two else I16)
    first = b.insert_element(e.zero(vec(packed.type, 16 // (4 if two else 2))), packed, e.i32(0))
    return b.fpext(e.shuffle(b.bitcast(first, vec(F16, 8)), range(4)), vec(F32, 4))
