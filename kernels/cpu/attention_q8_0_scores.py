"""Scores of attention over one block of q8_0 keys with AVX512-VNNI, as vector IR: byte dot products instead of float32
ones.

A query row becomes whole numbers of 16 bits, as two signed bytes ("digits") a component; keys are bytes as they are, so
the products are exact. What is rounded is half a 32512th of a row's largest component; q8_0 itself has rounded each key
by up to half a 127th of the largest of its block. A tile is 16 positions, one a lane: keys are transposed four
components at a time, and no sum goes across lanes. The instruction takes keys without sign, so 128 is added to them,
and sums start at -128 * sum of the digits.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.attention_tiles import TILE, half_scales, tiles
from kernels.cpu.vector_ir import F32, I8, I32, I64, V8I32, V32I8, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

DIGITS = 2
_LARGEST = 127 << 8  # two signed digits hold a little more, so that rounding stays within
_BLOCK_BYTES = block_bytes(QuantType.Q8_0)
PACKED_UNIT_BYTES = 128
"""32 components of a packed row: digits int8 [2, 32], then where their sums start, int32 [2]; a float32 row's bytes."""

_V16I32, _V16F32 = vec(I32, TILE), vec(F32, TILE)


def emit_pack(e: Emitter, arguments: tuple[Any, ...], rows: int) -> None:
    """Digits of `rows` float32 query rows: packed [n_units, rows] of PACKED_UNIT_BYTES, then float32 [rows] what a
    unit of the digits' number is worth.

    arguments: address of the rows' addresses int64 [rows], n_units, packed.
    """
    b, (places, n_units, packed) = e.b, arguments
    worths = b.add(packed, b.mul(n_units, e.i64(rows * PACKED_UNIT_BYTES)))
    for i in range(rows):
        row = e.load(e.at(places, 8 * i), I64, 8)

        def magnitude(u: Any, found: list[Any], row: Any = row) -> list[Any]:
            for half in (0, 64):
                value = e.load(e.at(b.add(row, b.shl(u, e.i64(7))), half), _V16F32, 4)
                found[0] = e.call("llvm.maximum", _V16F32, [found[0], e.call("llvm.fabs", _V16F32, [value])])
            return found

        (largest,) = e.loop(n_units, [e.zero(_V16F32)], magnitude)
        largest = e.reduce(lambda x, y: e.call("llvm.maximum", x.type, [x, y]), largest, TILE)
        e.store(b.fdiv(largest, e.f32(_LARGEST)), e.at(worths, 4 * i), 4)
        is_zero = b.fcmp_ordered("==", largest, e.f32(0.0))
        inverse = b.select(is_zero, e.f32(0.0), b.fdiv(e.f32(_LARGEST), largest))

        def one(u: Any, _: list[Any], row: Any = row, inverse: Any = inverse, i: int = i) -> list[Any]:
            to = b.add(packed, b.mul(e.at(b.mul(u, e.i64(rows)), i), e.i64(PACKED_UNIT_BYTES)))
            _pack_unit(e, b.add(row, b.shl(u, e.i64(7))), inverse, to)
            return []

        e.loop(n_units, [], one)


def _pack_unit(e: Emitter, row: Any, inverse: Any, to: Any) -> None:
    """Digits of 32 components at `row`, and -128 times their sums."""
    b, kind = e.b, vec(I32, 32)
    scaled = b.fmul(e.load(row, vec(F32, 32), 4), e.splat(inverse, 32))
    rest = b.fptosi(e.call("llvm.rint", scaled.type, [scaled]), kind)
    for n in range(DIGITS):
        digit = b.trunc(rest, V32I8)
        rest = b.ashr(b.sub(rest, b.sext(digit, kind)), e.const(kind, 8))
        e.store(digit, e.at(to, 32 * n))
        total = e.reduce(b.add, e.dot(e.zero(V8I32), e.const(V32I8, 1), digit, signed=False), 8)
        e.store(b.mul(total, e.i32(-128)), e.at(to, 32 * DIGITS + 4 * n), 4)


def emit_scores(e: Emitter, arguments: tuple[Any, ...], rows: int, ahead: int) -> None:
    """out[p, i] = scale * q_i . k_p for `rows` packed query rows and n_positions rows of keys; out float32 [block,
    rows]. Asks for the keys `ahead` positions later.

    arguments: k, k_stride, n_positions, n_units, address of the float32 scale, packed, out.
    """
    b = e.b
    k, k_stride, n_positions, n_units, scale_at, packed, out = arguments
    scale = e.load(scale_at, F32, 4)
    worths = b.add(packed, b.mul(n_units, e.i64(rows * PACKED_UNIT_BYTES)))
    factors = [e.splat(b.fmul(scale, e.load(e.at(worths, 4 * i), F32, 4)), TILE) for i in range(rows)]
    n_tiles, first_of, stride = tiles(e, n_positions, k_stride)

    distance = b.mul(k_stride, e.i64(ahead))

    def read(block: Any) -> list[Any]:
        """Transposed keys and scales of the blocks of a tile of which `block` is the first."""
        blocks = [b.add(block, b.mul(stride, e.i64(j))) for j in range(TILE)]
        for each in blocks:
            e.prefetch(b.add(each, distance), 2)
        return [*_transposed(e, blocks), half_scales(e, blocks)]

    def tile(t: Any, carried: list[Any]) -> list[Any]:
        first, following = first_of(t), e.at(t, 1)
        following = first_of(b.select(b.icmp_signed("<", following, n_tiles), following, t))
        start, next_start = (b.add(k, b.mul(place, k_stride)) for place in (first, following))

        def unit(u: Any, carried: list[Any]) -> list[Any]:
            scores, keys, d, found = carried[:rows], carried[rows:-1], carried[-1], []
            for i in range(rows):
                digits = b.add(packed, b.mul(e.at(b.mul(u, e.i64(rows)), i), e.i64(PACKED_UNIT_BYTES)))
                found.append(e.fma(_products(e, keys, digits), d, scores[i]))
            is_last = b.icmp_signed("==", e.at(u, 1), n_units)
            later = b.select(is_last, next_start, b.add(start, b.mul(e.at(u, 1), e.i64(_BLOCK_BYTES))))
            return found + read(later)

        carried = e.loop(n_units, [e.zero(_V16F32)] * rows + carried, unit)
        to = b.add(out, b.mul(first, e.i64(4 * rows)))
        scaled = [b.fmul(*pair) for pair in zip(carried[:rows], factors, strict=True)]
        for n, part in enumerate(_interleaved(e, scaled)):
            e.store(part, e.at(to, 4 * TILE * n), 4)
        return carried[rows:]

    # keys are transposed while the unit before them is multiplied: both at once take what products alone would
    e.loop(n_tiles, read(k), tile)


def _transposed(e: Emitter, blocks: list[Any]) -> list[Any]:
    """Quants plus 128 of TILE blocks as 8 vectors of bytes: lane j of int32 vector c holds components 4c..4c+3 of
    block j.

    Vectors start as blocks (j, j + 4) of 8 words each, j in 0..3 and 8..11; words and pairs of words are interleaved
    within 128 bits, and quarters are picked last: those of blocks 0-3, 4-7, 8-11, 12-15.
    """
    words = [e.load(e.at(block, 2), vec(I32, 8)) for block in blocks]
    groups = []
    for g in (0, 8):
        r = [e.concat(words[g + j], words[g + j + 4]) for j in range(4)]
        low = [4 * q + i + s for q in range(4) for i in (0, 1) for s in (0, 16)]
        high = [2 + i for i in low]
        pairs = [e.shuffle(r[j], lanes, r[j + 1]) for lanes in (low, high) for j in (0, 2)]
        even = [4 * q + i + s for q in range(4) for s in (0, 16) for i in (0, 1)]
        odd = [2 + i for i in even]
        groups.append([e.shuffle(pairs[n], lanes, pairs[n + 1]) for n in (0, 2) for lanes in (even, odd)])
    found = []
    for quarter in (0, 4):
        lanes = [s + 8 * h + quarter + i for s in (0, 16) for h in (0, 1) for i in range(4)]
        found += [e.shuffle(groups[0][c], lanes, groups[1][c]) for c in range(4)]
    flip = e.const(vec(I8, 4 * TILE), -128)
    return [e.b.xor(e.b.bitcast(v, flip.type), flip) for v in found]


def _products(e: Emitter, keys: list[Any], digits: Any) -> Any:
    """float32 [TILE]: sum over 32 components of the digits' number times the key."""
    b = e.b
    sums = [e.splat(e.load(e.at(digits, 32 * DIGITS + 4 * n), I32, 4), TILE) for n in range(DIGITS)]
    for c, key in enumerate(keys):
        for n in range(DIGITS):
            word = e.splat(e.load(e.at(digits, 32 * n + 4 * c), I32, 4), TILE)
            sums[n] = e.dot(sums[n], key, b.bitcast(word, key.type), signed=False)
    return b.sitofp(b.add(b.shl(sums[1], e.const(_V16I32, 8)), sums[0]), _V16F32)


def _interleaved(e: Emitter, vectors: list[Any]) -> list[Any]:
    """[n] vectors as [lanes, n]: lane 0 of each, then lane 1 of each, ..; n is a power of two."""
    if len(vectors) == 1:
        return vectors
    found = []
    for x, y in zip(_interleaved(e, vectors[::2]), _interleaved(e, vectors[1::2]), strict=True):
        for first in (0, TILE // 2):
            found.append(e.shuffle(x, [first + i // 2 + TILE * (i % 2) for i in range(TILE)], y))
    return found
