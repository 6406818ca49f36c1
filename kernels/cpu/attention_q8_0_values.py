"""The weighted sum of q8_0 values of attention over one block of cache positions, with AVX512-VNNI, as vector IR.

Weights take the scales of the positions' blocks; then those of a row and a unit of 32 columns become whole numbers of
16 bits, in parts of the largest of them, as two bytes without sign ("digits"). Byte dot products over four positions at
a time are exact, so a result does not depend on the order of positions. What is rounded is half a 65535th of the
largest weight; q8_0 itself has rounded each value by up to half a 127th of the largest of its block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.cpu.attention_softmax import over_positions
from kernels.cpu.attention_tiles import TILE, half_scales
from kernels.cpu.attention_values import row_addresses
from kernels.cpu.vector_ir import F32, I8, I32, Emitter, vec
from kernels.quant_types import QuantType, block_bytes

_BLOCK_BYTES = block_bytes(QuantType.Q8_0)
_DIGITS, _LARGEST = 2, 65535.0
_WHOLE = float(1 << 23)  # added to a smaller number it leaves the nearest whole one in the lowest bits
_GROUP = 4  # positions of a byte dot product
_LANES = 16
_FLOATS, _INTS, _BYTES = vec(F32, _LANES), vec(I32, _LANES), vec(I8, 4 * _LANES)


def emit_weighted_values(e: Emitter, arguments: tuple[Any, ...], rows: int, block: int) -> None:
    """out_i = factor_i * out_i + sum over positions of weights[p, i] * v_p, for float32 rows out_i.

    arguments: weights, v, v_stride, n_positions, n_units, addresses of the rows' states and of the rows, int64 [rows]
    each. weights float32 [block, rows], 0 from n_positions on. Asks for the values `block` positions later.
    """
    b, (_, _, stride, n_positions) = e.b, arguments[:4]
    scaled, digits = e.scratch(4 * block * rows), e.scratch(_DIGITS * block * rows)
    last = b.mul(b.sub(n_positions, e.i64(1)), stride)

    def direct(first: Any, j: int) -> Any:
        return b.mul(e.at(first, j), stride)

    def within(first: Any, j: int) -> Any:
        """The last position's place for those behind it: they have no weight, but may be no memory either."""
        place = direct(first, j)
        return b.select(b.icmp_signed("<", place, last), place, last)

    with b.if_else(b.icmp_signed("==", n_positions, e.i64(block))) as (is_whole, is_part):
        for case, place in ((is_whole, direct), (is_part, within)):
            with case:
                _Sums(e, arguments, rows, block, (scaled, digits), place).emit()


class _Sums:
    """Emits the sums of all units; place(first, j) is how far behind v the row of position first + j lies."""

    def __init__(
        self,
        e: Emitter,
        arguments: tuple[Any, ...],
        rows: int,
        block: int,
        scratch: tuple[Any, Any],
        place: Callable[[Any, int], Any],
    ) -> None:
        self.e, self.rows, self.block, self.place = e, rows, block, place
        self.weights, self.v, self.stride, self.n_positions, self.n_units = arguments[:5]
        self.states, self.outs = row_addresses(e, arguments[5], rows), row_addresses(e, arguments[6], rows)
        self.scaled, self.digits = scratch

    def emit(self) -> None:
        e, b = self.e, self.e.b

        def unit(u: Any, _: list[Any]) -> list[Any]:
            at = b.add(self.v, b.mul(u, e.i64(_BLOCK_BYTES)))
            worths = self._make_digits(self._scale_weights(at))
            for half in (0, 1):
                self._sum(e.at(at, 2 + _LANES * half), e.at(b.shl(u, e.i64(7)), 64 * half), worths, asks=half == 0)
            return []

        e.loop(self.n_units, [], unit)

    def _scale_weights(self, at: Any) -> Any:
        """Write weights times the scales of the blocks whose first lies at `at`; float32 [rows], the largest of each.

        They have no sign, so their bits compare as they do, and NaN is larger than all.
        """
        e, b, rows = self.e, self.e.b, self.rows

        def larger(x: Any, y: Any) -> Any:
            return b.select(b.icmp_unsigned(">", x, y), x, y)

        def tile(t: Any, largest: list[Any]) -> list[Any]:
            first = b.mul(t, e.i64(TILE))
            d = half_scales(e, [b.add(at, self.place(first, j)) for j in range(TILE)])
            start, found = b.mul(first, e.i64(4 * rows)), []
            for n, so_far in enumerate(largest):
                each = e.shuffle(d, [(TILE * n + i) // rows for i in range(TILE)])
                here = e.at(start, 4 * TILE * n)
                scaled = b.fmul(e.load(b.add(self.weights, here), _FLOATS, 4), each)
                e.store(scaled, b.add(self.scaled, here), 64)
                found.append(larger(b.bitcast(scaled, _INTS), so_far))
            return found

        largest = e.loop(self._tiles(), [e.zero(_INTS)] * rows, tile)
        return b.bitcast(over_positions(e, larger, largest, rows), vec(F32, rows))

    def _tiles(self) -> Any:
        return self.e.b.udiv(self.e.b.add(self.n_positions, self.e.i64(TILE - 1)), self.e.i64(TILE))

    def _make_digits(self, largest: Any) -> Any:
        """Write the digits of the scaled weights, dwords of 4 positions [block / 4, digit, rows]; float32 [rows], what
        a unit of the digits' number is worth.
        """
        e, b, rows = self.e, self.e.b, self.rows
        limit = e.splat(e.f32(_LARGEST), rows)
        is_zero = b.fcmp_ordered("==", largest, e.zero(largest.type))
        inverse = b.select(is_zero, e.zero(largest.type), b.fdiv(limit, largest))
        inverse, whole = e.shuffle(inverse, [i % rows for i in range(_LANES)]), e.splat(e.f32(_WHOLE), _LANES)
        at_once = max(1, rows // 4)  # vectors that hold whole groups
        n_groups = _LANES * at_once // (_GROUP * rows)
        picked = [
            4 * ((_GROUP * g + j) * rows + i) + digit
            for g in range(n_groups)
            for digit in range(_DIGITS)
            for i in range(rows)
            for j in range(_GROUP)
        ]

        def tile(t: Any, _: list[Any]) -> list[Any]:
            start, to = b.mul(t, e.i64(4 * TILE * rows)), b.add(self.digits, b.mul(t, e.i64(_DIGITS * TILE * rows)))
            for n in range(0, rows, at_once):
                parts = [e.load(e.at(b.add(self.scaled, start), 64 * (n + i)), _FLOATS, 64) for i in range(at_once)]
                numbers = [b.bitcast(e.fma(part, inverse, whole), _BYTES) for part in parts]
                e.store(e.shuffle(numbers[0], picked, numbers[-1]), e.at(to, len(picked) * (n // at_once)), 32)
            return []

        e.loop(self._tiles(), [], tile)
        return b.fdiv(largest, limit)

    def _sum(self, at: Any, out_at: Any, worths: Any, asks: bool) -> None:
        """Add the weighted values of 16 columns, the first position's at `at`, to all rows."""
        e, b, rows = self.e, self.e.b, self.rows
        turned = [_LANES * j + c for c in range(_LANES) for j in range(_GROUP)]
        next_block = b.mul(self.stride, e.i64(self.block))

        def group(g: Any, sums: list[Any]) -> list[Any]:
            first = b.mul(g, e.i64(_GROUP))
            places = [b.add(at, self.place(first, j)) for j in range(_GROUP)]
            if asks:
                for place in places:
                    e.prefetch(b.add(place, next_block), 2)
            values = e.shuffle(e.joined([e.load(place, vec(I8, _LANES)) for place in places]), turned)
            words = b.add(self.digits, b.mul(g, e.i64(4 * _DIGITS * rows)))
            found = []
            for n, so_far in enumerate(sums):
                weights = b.bitcast(e.splat(e.load(e.at(words, 4 * n), I32, 4), _LANES), _BYTES)
                found.append(e.dot(so_far, weights, values, signed=False))
            return found

        n_groups = b.udiv(b.add(self.n_positions, e.i64(_GROUP - 1)), e.i64(_GROUP))
        sums = e.loop(n_groups, [e.zero(_INTS)] * (_DIGITS * rows), group)
        for i in range(rows):
            total = b.sitofp(b.add(b.shl(sums[rows + i], e.const(_INTS, 8)), sums[i]), _FLOATS)
            factor = e.splat(e.load(e.at(self.states[i], 8), F32, 4), _LANES)
            to = b.add(self.outs[i], out_at)
            before = b.fmul(factor, e.load(to, _FLOATS, 4))
            e.store(e.fma(total, e.splat(e.lane(worths, i), _LANES), before), to, 4)
