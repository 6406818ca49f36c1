"""The row dot of super-block types with one sub-scale per 32 weights: Q4_K, Q5_K and IQ4_XS.

Headers of several super-blocks are unpacked together into a few bytes of stack, so that the loop over weights takes
each sub-scale as one broadcast load, which costs no vector instruction: on a Zen 4 that loop is bound by instructions,
not by memory, when headers are unpacked one by one. Layouts are in dot_k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernels.cpu.dot_k import iq4_xs_groups, q4_k_groups, q5_k_groups
from kernels.cpu.vector_ir import F16, F32, I8, I16, I32, V8F32, V8I32, V16I16, V32I8, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

WIDTH = 4
"""Super-blocks whose headers are unpacked together: four fill 512 bits."""

WHOLE_COLS = 256 * WIDTH
"""Rows of a multiple of this many columns have code of their own, without a step of fewer super-blocks."""

_SCALES_BYTES = 32 * WIDTH  # of the stage; d * dx of each super-block follows
_CHAINS = 2  # sums of a super-block: a dot product instruction takes 4 cycles


@dataclass(frozen=True, slots=True)
class Header:
    """Unpacked headers of WIDTH super-blocks: int16 sub-scales and `mins` (or None), one a group, and the half-float
    scales: d of each super-block, or d and dmin in turn."""

    scales: Any
    halves: Any
    mins: Any = None


@dataclass(frozen=True, slots=True)
class Staged:
    """How a type is read: the headers at several addresses, the 8 groups of byte lanes at one, and whether those are
    signed."""

    header: Callable[[Emitter, Sequence[Any]], Header]
    groups: Callable[[Emitter, Any], list[Any]]
    signed: bool = False


def _packed_header(e: Emitter, blocks: Sequence[Any]) -> Header:
    """d, dmin and the 12 bytes of Q4_K and Q5_K, a super-block in each 128 bits.

    Words of a header: d and dmin, w0, w1, w2. Scales are (w0 & 63, w2 & 15 | high bits of w0), mins the same of w1
    and w2 >> 4.
    """
    b, width = e.b, len(blocks)
    header = e.joined([e.load(p, vec(I32, 4)) for p in blocks])

    def in_each(words: Sequence[int]) -> Any:
        return e.shuffle(header, [4 * k + w for k in range(width) for w in words])

    low = b.lshr(in_each((1, 3, 2, 3)), e.const(header.type, [0, 0, 0, 4] * width))
    low = b.and_(low, e.const(header.type, [0x3F3F3F3F, 0x0F0F0F0F] * (2 * width)))
    high = b.lshr(in_each((1, 1, 2, 2)), e.const(header.type, 2))
    high = b.and_(high, e.const(header.type, [0, 0x30303030] * (2 * width)))
    packed = b.bitcast(b.or_(low, high), vec(I8, 16 * width))
    scales, mins = (
        b.zext(e.shuffle(packed, [16 * k + first + g for k in range(width) for g in range(8)]), vec(I16, 8 * width))
        for first in (0, 8)
    )
    halves = b.bitcast(e.shuffle(header, range(0, 4 * width, 4)), vec(F16, 2 * width))
    return Header(scales, halves, mins)


def iq4_xs_header(e: Emitter, blocks: Sequence[Any]) -> Header:
    """d, 16 bits with the high two of each sub-scale, 4 bytes with the low nibbles; a sub-scale is both - 32."""
    b, width = e.b, len(blocks)
    header = e.joined([e.load(p, vec(I16, 4)) for p in blocks])
    kind = vec(I16, 8 * width)
    low = e.shuffle(header, [4 * k + 2 + g // 4 for k in range(width) for g in range(8)])
    low = b.and_(b.lshr(low, e.const(kind, [4 * (g % 4) for g in range(8)] * width)), e.const(kind, 15))
    high = e.shuffle(header, [4 * k + 1 for k in range(width) for _ in range(8)])
    high = b.and_(b.lshr(high, e.const(kind, [2 * g for g in range(8)] * width)), e.const(kind, 3))
    scales = b.sub(b.or_(low, b.shl(high, e.const(kind, 4))), e.const(kind, 32))
    return Header(scales, b.bitcast(e.shuffle(header, range(0, 4 * width, 4)), vec(F16, width)))


STAGED: dict[QuantType, Staged] = {
    QuantType.Q4_K: Staged(_packed_header, q4_k_groups),
    QuantType.Q5_K: Staged(_packed_header, q5_k_groups),
    QuantType.IQ4_XS: Staged(iq4_xs_header, iq4_xs_groups, signed=True),
}


class _Row:
    """The dot of one row with one q8_256 record, by parts; sums within a super-block are exact integers."""

    def __init__(self, e: Emitter, quant_type: QuantType, row: Any, n_cols: Any, record: Any, whole: bool) -> None:
        b = e.b
        self.e, self.how, self.size, self.whole = e, STAGED[quant_type], block_bytes(quant_type), whole
        self.row, self.record, self.n_blocks = row, record, b.lshr(n_cols, e.i64(8))
        self.d_base = b.add(b.add(record, n_cols), b.lshr(n_cols, e.i64(3)))
        self.pair_base = b.add(self.d_base, b.lshr(n_cols, e.i64(6)))
        self.stage = e.scratch(_SCALES_BYTES + 8 * WIDTH)
        self.d_step = 8 if quant_type != QuantType.IQ4_XS else 4

    def dot(self) -> Any:
        e, b = self.e, self.e.b
        n_steps = b.lshr(b.add(self.n_blocks, e.i64(WIDTH - 1)), e.i64(WIDTH.bit_length() - 1))
        products, minima = e.loop(n_steps, [e.zero(V8F32), e.zero(vec(F32, 4 * WIDTH))], self._step)
        halves = b.fadd(e.shuffle(minima, range(8)), e.shuffle(minima, range(8, 16)))
        return e.reduce(b.fadd, b.fsub(products, halves), 8)

    def _step(self, i: Any, sums: list[Any]) -> list[Any]:
        """Up to WIDTH super-blocks; `sums`: float32 [8] of products, float32 [4 WIDTH] of minima."""
        e, b = self.e, self.e.b
        first = b.mul(i, e.i64(WIDTH))
        n = None
        if not self.whole:
            left = b.sub(self.n_blocks, first)
            n = b.select(b.icmp_signed("<", left, e.i64(WIDTH)), left, e.i64(WIDTH))
        start, x_start = b.add(self.row, b.mul(first, e.i64(self.size))), b.add(self.record, b.shl(first, e.i64(8)))
        products, minima = sums[0], self._unpack(first, n, start, sums[1])
        e.barrier()

        def block(k: Any, carried: list[Any]) -> list[Any]:
            p, x = b.add(start, b.mul(k, e.i64(self.size))), b.add(x_start, b.shl(k, e.i64(8)))
            e.prefetch_weights(p, self.size)
            total = self._products(p, x, b.add(self.stage, b.shl(k, e.i64(4))))
            d = e.load(b.add(e.at(self.stage, _SCALES_BYTES), b.mul(k, e.i64(self.d_step))), F32, 4)
            return [e.fma(b.sitofp(total, V8F32), e.splat(d, 8), carried[0])]

        if n is None:
            for k in range(WIDTH):
                (products,) = block(e.i64(k), [products])
        else:
            (products,) = e.loop(n, [products], block)
        e.barrier()
        return [products, minima]

    def _unpack(self, first: Any, n: Any, start: Any, minima: Any) -> Any:
        """Stage the sub-scales as pairs of int16, and d * dx; returns `minima` with those of these n super-blocks, all
        WIDTH where n is None. Of fewer, the last one's header stands for the missing, worth 0."""
        e, b = self.e, self.e.b
        places = [e.i64(k) for k in range(WIDTH)]
        if n is not None:
            last = b.sub(n, e.i64(1))
            places[1:] = [b.select(b.icmp_signed("<", last, place), last, place) for place in places[1:]]
        header = self.how.header(e, [b.add(start, b.mul(place, e.i64(self.size))) for place in places])
        for half in (0, 1):
            twice = [8 * k + 4 * half + g // 2 for k in range(WIDTH) for g in range(8)]
            e.store(e.shuffle(header.scales, twice), e.at(self.stage, 16 * WIDTH * half), 16)
        n_halves = header.halves.type.count // WIDTH
        dx = e.load(b.add(self.d_base, b.shl(first, e.i64(2))), vec(F32, WIDTH), 4)
        if n is not None:
            # what lies behind the record's d may be subnormal as float32; multiplying such takes a Zen 4 50 cycles
            block = e.const(vec(I32, WIDTH), list(range(WIDTH)))
            is_there = b.icmp_unsigned("<", block, e.splat(b.trunc(n, I32), WIDTH))
            dx = b.select(is_there, dx, e.zero(dx.type))
        d = b.fpext(header.halves, vec(F32, n_halves * WIDTH))
        d = b.fmul(d, e.shuffle(dx, [k for k in range(WIDTH) for _ in range(n_halves)]))
        e.store(d, e.at(self.stage, _SCALES_BYTES), 4)
        if header.mins is None:
            return minima
        pairs = e.load(b.add(self.pair_base, b.shl(first, e.i64(4))), vec(I16, 8 * WIDTH), 2)
        low = b.sitofp(e.madd(header.mins, pairs), vec(F32, 4 * WIDTH))
        dmin = e.shuffle(d, [2 * k + 1 for k in range(WIDTH) for _ in range(4)])
        return e.fma(low, dmin, minima)

    def _products(self, p: Any, x: Any, scales: Any) -> Any:
        """int32 [8] of sub-scale * weight * activation of one super-block; its staged scales begin at `scales`."""
        e = self.e
        totals = [e.zero(V8I32)] * _CHAINS
        for g, q in enumerate(self.how.groups(e, p)):
            scale = e.splat(e.load(e.at(scales, 16 * WIDTH * (g // 4) + 4 * (g % 4)), I32, 4), 8)
            part = e.load(e.at(x, 32 * g), V32I8)
            chain = g % _CHAINS
            totals[chain] = e.scaled_dot(totals[chain], q, part, e.b.bitcast(scale, V16I16), self.how.signed)
        return e.b.add(*totals)


def row_dot(e: Emitter, quant_type: QuantType, row: Any, n_cols: Any, record: Any, whole: bool = False) -> Any:
    """Float32 dot of the row at address `row` with one q8_256 record. `whole` says that n_cols is a multiple of
    WHOLE_COLS."""
    return _Row(e, quant_type, row, n_cols, record, whole).dot()
