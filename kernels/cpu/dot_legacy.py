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

from kernels.cpu.bit_fields import bit_masks, has_bit_masks
from kernels.cpu.dot_iq import IQ4_VALUES, MXFP4_VALUES, e8m0_half
from kernels.cpu.halves import by_halves, dot_of_halves, groups_together, starts
from kernels.cpu.vector_ir import F16, F32, I1, I8, I16, I32, V32I8, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

_STEP = 8  # blocks of one step of the row dot
WHOLE_COLS = 32 * _STEP
"""Rows of a multiple of this many columns have code of their own, without a tail loop."""

_CHAINS = 4  # sums of products, since one fused multiply-add takes 4 cycles
_WINDOW_BYTES = 64


@dataclass(frozen=True, slots=True)
class Block32:
    """One unpacked block: float32 scale `d`, byte lanes `q` (`signed` or 0..127), float32 minimum `m` or None."""

    d: Any
    q: Any
    signed: bool
    m: Any = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How a type stores a block: w = d * (codes - offset) + m. `codes` of the blocks at several addresses, one behind
    the other, are 0..127, or -128..127 if `signed`; the scale d and the minimum m are float16 at d_at and m_at, or d is
    an e8m0 byte. Where codes are nibbles, or found by them in `table`, the nibbles are at nibbles_at; where a fifth bit
    of each is apart, the u32 of those is at fifth_at."""

    codes: Callable[[Emitter, Sequence[Any]], Any]
    d_at: int = 0
    m_at: int | None = None
    signed: bool = False
    offset: int = 0
    e8m0: bool = False
    nibbles_at: int | None = None
    fifth_at: int | None = None
    table: tuple[int, ...] | None = None


def nibbles(e: Emitter, addresses: Sequence[Any]) -> Any:
    """32 lanes from the 16 bytes at each address: low nibbles, then high nibbles."""
    twice = [e.shuffle(e.load(p, vec(I8, 16)), [*range(16)] * 2) for p in addresses]
    words = e.b.bitcast(e.joined(twice), vec(I32, 8 * len(twice)))
    words = e.b.lshr(words, e.const(words.type, ([0] * 4 + [4] * 4) * len(twice)))
    return e.b.bitcast(e.b.and_(words, e.const(words.type, 0x0F0F0F0F)), vec(I8, 32 * len(twice)))


def _of_five_bits(fifth: int, low: int, **others: Any) -> Layout:
    """The layout of a type whose codes are the nibbles at byte `low`, plus 16 where the u32 at `fifth` has ones."""

    def codes(e: Emitter, blocks: Sequence[Any]) -> Any:
        bits = e.joined([e.b.bitcast(e.load(e.at(p, fifth), I32), vec(I1, 32)) for p in blocks])
        packed = nibbles(e, [e.at(p, low) for p in blocks])
        return e.b.or_(packed, e.b.select(bits, e.const(packed.type, 16), e.zero(packed.type)))

    return Layout(codes, nibbles_at=low, fifth_at=fifth, **others)


def _bytes(e: Emitter, blocks: Sequence[Any]) -> Any:
    return e.joined([e.load(e.at(p, 2), V32I8) for p in blocks])


def _of_nibbles(at: int, table: Sequence[int] | None = None, **others: Any) -> Layout:
    """The layout of a type whose codes are the nibbles at byte `at`, or what `table` says for each."""

    def codes(e: Emitter, blocks: Sequence[Any]) -> Any:
        packed = nibbles(e, [e.at(p, at) for p in blocks])
        return packed if table is None else e.lookup(table, packed)

    return Layout(codes, nibbles_at=at, table=None if table is None else tuple(table), **others)


_MXFP4_OFFSET = max(MXFP4_VALUES)
_MXFP4_CODES = tuple(value + _MXFP4_OFFSET for value in MXFP4_VALUES)

LAYOUTS: dict[QuantType, Layout] = {
    QuantType.Q8_0: Layout(_bytes, signed=True),
    QuantType.Q4_0: _of_nibbles(2, offset=8),
    QuantType.Q4_1: _of_nibbles(4, m_at=2),
    QuantType.Q5_0: _of_five_bits(2, 6, offset=16),
    QuantType.Q5_1: _of_five_bits(4, 8, m_at=2),
    QuantType.IQ4_NL: _of_nibbles(2, IQ4_VALUES, signed=True),
    QuantType.MXFP4: _of_nibbles(1, _MXFP4_CODES, offset=_MXFP4_OFFSET, e8m0=True),
}


def _layout_of_dot(e: Emitter, quant_type: QuantType) -> Layout:
    """That of LAYOUTS, but signed tables 128 higher where a dot takes any unsigned bytes: signs cost it more."""
    layout = LAYOUTS[quant_type]
    if layout.table is None or not layout.signed or not e.takes_any_bytes:
        return layout
    return _of_nibbles(layout.nibbles_at or 0, [value + 128 for value in layout.table], offset=128)


def _strided(e: Emitter, kind: Any, start: Any, at: int, stride: int, n: int) -> Any:
    """The element of `kind` at byte `at` of each of n blocks, `stride` bytes apart from `start` on, as lanes.

    With 512-bit vectors whole windows of the blocks are loaded and the lanes picked out of two at a time: a few
    instructions, where one by one takes two an element. Nothing outside the blocks is read.
    """
    element_bytes = 1 if kind == I8 else 2
    if n < _STEP or e.isa != "avx512vnni" or stride % element_bytes or at % element_bytes:
        packed = ir.Constant(vec(kind, n), ir.Undefined)
        for i in range(n):
            packed = e.b.insert_element(packed, e.load(e.at(start, at + stride * i), kind), e.i32(i))
        return packed
    per = _WINDOW_BYTES // element_bytes
    integers = vec(ir.IntType(8 * element_bytes), per)
    picked: Any = None
    lanes: list[int] = []  # of `picked`: where the elements found so far are
    for begin in range(0, n * stride, _WINDOW_BYTES):
        first = min(begin, n * stride - _WINDOW_BYTES)
        places = [at + stride * i for i in range(n)]
        inside = [(place - first) // element_bytes for place in places if begin <= place < begin + _WINDOW_BYTES]
        if not inside:
            continue
        window = e.load(e.at(start, first), integers)
        if picked is None:
            picked, lanes = window, inside
        else:
            taken = [*lanes, *(per + j for j in inside)]
            picked = e.shuffle(picked, taken + [0] * (per - len(taken)), window)
            lanes = [*range(len(taken))]
    return e.b.bitcast(e.shuffle(picked, lanes), vec(kind, n))


def _scales(e: Emitter, layout: Layout, start: Any, at: int, stride: int, n: int) -> Any:
    """The scales (or minima) at byte `at` of n blocks, as float32 lanes; converted together, which is most of their
    cost."""
    packed = _strided(e, I8 if layout.e8m0 else F16, start, at, stride, n)
    return e8m0_half(e, packed) if layout.e8m0 else e.b.fpext(packed, vec(F32, n))


def _unpack(quant_type: QuantType) -> Callable[[Emitter, Any], Block32]:
    layout = LAYOUTS[quant_type]

    def unpack(e: Emitter, p: Any) -> Block32:
        q = layout.codes(e, [p])
        if layout.offset:
            q = e.b.sub(q, e.const(V32I8, layout.offset))
        d = e.lane(_scales(e, layout, p, layout.d_at, 0, 1), 0)
        m = None if layout.m_at is None else e.half(e.at(p, layout.m_at))
        return Block32(d, q, layout.signed or layout.offset > 0, m)

    return unpack


UNPACK: dict[QuantType, Callable[[Emitter, Any], Block32]] = {t: _unpack(t) for t in LAYOUTS}


def _products(e: Emitter, layout: Layout, blocks: Sequence[Any], x: Any) -> Any:
    """int32 lanes, 8 a block: 4-sums of codes times the activations at `x`."""
    activations = e.load(x, vec(I8, 32 * len(blocks)))
    return e.dot(e.zero(vec(I32, 8 * len(blocks))), layout.codes(e, blocks), activations, layout.signed)


def _picked(e: Emitter, start: Any, stride: int, blocks: range, places: Sequence[int]) -> Any:
    """The bytes at `places` of each of `blocks`, one behind the other, of _STEP blocks from `start` on, `stride` bytes
    apart: out of two 512-bit windows with one instruction. By twos where there is no VBMI."""
    low = 0 if blocks[0] == 0 else _WINDOW_BYTES
    windows = low, min(low + _WINDOW_BYTES, _STEP * stride - _WINDOW_BYTES)
    size = 1 if e.permutes_bytes else 2
    at = [stride * k + place for k in blocks for place in places[::size]]
    lanes = [(p - low) // size if p < low + _WINDOW_BYTES else (p - windows[1] + _WINDOW_BYTES) // size for p in at]
    first, second = (e.load(e.at(start, w), vec(ir.IntType(8 * size), _WINDOW_BYTES // size)) for w in windows)
    return e.b.bitcast(e.shuffle(first, lanes, second), vec(I8, 16 * len(blocks)))


def _packed(e: Emitter, start: Any, at: int, stride: int, blocks: range) -> Any:
    """16 bytes from byte `at` of each of `blocks`, one behind the other, of _STEP blocks from `start` on."""
    if e.isa != "avx512vnni" or (stride % 2 and not e.permutes_bytes):
        return e.joined([e.load(e.at(start, stride * k + at), vec(I8, 16)) for k in blocks])
    return _picked(e, start, stride, blocks, range(at, at + 16))


def _fifth_bits(e: Emitter, layout: Layout, start: Any, stride: int, blocks: range) -> list[Any] | None:
    """For both halves of `blocks` 16 where a weight's fifth bit is set, else 0; None for types without."""
    if layout.fifth_at is None:
        return None
    b, found, kind = e.b, [], vec(I8, 16 * len(blocks))
    for at in (layout.fifth_at, layout.fifth_at + 2):
        if e.permutes_bytes and has_bit_masks(e):
            masks = bit_masks(e, _picked(e, start, stride, blocks, [at] * 8 + [at + 1] * 8))
            found.append(b.and_(masks, e.const(kind, 16)))
            continue
        words, bits = ir.IntType(kind.count), ir.Constant(ir.IntType(kind.count), 0)
        for n, k in enumerate(blocks):
            word = b.zext(e.load(e.at(start, stride * k + at), I16), words)
            bits = b.or_(bits, b.shl(word, ir.Constant(words, 16 * n)))
        chosen = b.bitcast(bits, vec(I1, kind.count))
        found.append(b.select(chosen, e.const(kind, 16), e.zero(kind)))
    return found


def arranged(e: Emitter, quant_type: QuantType, n_cols: Any, record: Any) -> Any:
    """What `row_dot` takes for `record`: (record, addresses of its int8 by halves and of where sums of products start,
    or None)."""
    layout = _layout_of_dot(e, quant_type)
    if layout.nibbles_at is None:
        return record, None, None
    bias = e.b.add(record, e.b.add(n_cols, e.b.lshr(n_cols, e.i64(2))))
    start = starts(e, n_cols, bias, layout.offset) if layout.offset else None
    return record, by_halves(e, n_cols, record), start


def row_dot(e: Emitter, quant_type: QuantType, row: Any, n_cols: Any, record: Any, whole: bool) -> Any:
    """Float32 dot of the row at address `row` with one q8_32 record, `arranged`: 8 blocks a step, then the rest one by
    one. `whole` says that n_cols is a multiple of WHOLE_COLS: there is no rest.

    sum of d * dx * (codes . q)  +  sum of m * s, or  -  offset * sum of d * s, where s = dx * sum of q; by halves, sums
    of codes . q start at -offset * sum of q instead.
    """
    b, layout, size = e.b, _layout_of_dot(e, quant_type), block_bytes(quant_type)
    record, halves, start_base = record
    d_base = b.add(record, n_cols)
    s_base = b.add(d_base, b.lshr(n_cols, e.i64(3)))
    n_blocks = b.lshr(n_cols, e.i64(5))
    lanes = 8 * e.groups_at_once

    def steps(width: int) -> Callable[[Any, list[Any]], list[Any]]:
        together = min(width, e.groups_at_once)

        def body(i: Any, sums: list[Any]) -> list[Any]:
            first = b.mul(i, e.i64(width))
            x_base, at = b.add(record, b.shl(first, e.i64(5))), b.shl(first, e.i64(2))
            dx, s = (e.load(b.add(base, at), vec(F32, width), 4) for base in (d_base, s_base))
            start = b.add(row, b.mul(first, e.i64(size)))
            e.prefetch_weights(start, width * size)
            d = _scales(e, layout, start, layout.d_at, size, width)
            scale = b.fmul(d, dx)
            is_wide = halves is not None and width == _STEP
            count = groups_together(e) if is_wide else together
            for j in range(0, width, count):
                blocks = range(j, j + count)
                if is_wide:
                    packed = _packed(e, start, layout.nibbles_at or 0, size, blocks)
                    fifth = _fifth_bits(e, layout, start, size, blocks)
                    at = e.at(b.add(halves, b.shl(first, e.i64(5))), 32 * j)
                    begin = None if start_base is None else e.at(b.add(start_base, b.shl(first, e.i64(4))), 16 * j)
                    found = dot_of_halves(e, packed, at, layout.table, layout.signed, begin, fifth)
                else:
                    found = _products(e, layout, [e.at(start, size * k) for k in blocks], e.at(x_base, 32 * j))
                factor = e.shuffle(scale, [j + k * count // found.type.count for k in range(found.type.count)])
                found = e.widened(b.sitofp(found, factor.type), lanes)
                chain = j // count % _CHAINS
                sums[chain] = e.fma(found, e.widened(factor, lanes), sums[chain])
            if (layout.offset and not (is_wide and start_base is not None)) or layout.m_at is not None:
                factor = d if layout.m_at is None else _scales(e, layout, start, layout.m_at, size, width)
                sums[-1] = e.fma(e.widened(factor, 8), e.widened(s, 8), sums[-1])
            return sums

        return body

    sums = [*[e.zero(vec(F32, lanes))] * _CHAINS, e.zero(vec(F32, 8))]
    n_wide = b.lshr(n_blocks, e.i64(3))
    if whole:
        *chains, low = e.loop(n_wide, sums, steps(_STEP))
    else:
        sums = e.loop_or_skip(n_wide, sums, steps(_STEP))
        *chains, low = e.loop_or_skip(n_blocks, sums, steps(1), first=b.shl(n_wide, e.i64(3)))
    factor = e.splat(e.f32(-float(layout.offset) if layout.offset else 1.0), 8)
    total = b.fadd(b.fadd(chains[0], chains[1]), b.fadd(chains[2], chains[3]))
    while total.type.count > 8:
        total = b.fadd(e.shuffle(total, range(8)), e.shuffle(total, range(8, 16)))
    return e.reduce(b.fadd, e.fma(low, factor, total), 8)
