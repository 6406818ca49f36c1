"""The weighted sum of values of attention over one block of cache positions, as vector IR.

Every number of query rows sums positions in order, one after the other. Weights of q8_0 values take the blocks' scales
first, so that the values themselves need no multiplication; with AVX512-VNNI they go another way
(attention_q8_0_values).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.cpu.attention_tiles import TILE, half_scales, tiles
from kernels.cpu.kv_quant import load_unit, unit_bytes
from kernels.cpu.vector_ir import F32, I8, I32, I64, Emitter, vec

BLOCK = 64
"""Positions of a block: its keys and values (64 x 128 halves = 16 KiB each) stay in the first-level cache."""

_AHEAD_LEVEL = 2
"""Each read asks for its place one block later, into the second-level cache: the processor's own prefetching starts
anew with every block of keys and of values. 4096 positions, 16 heads of 128, two threads: f16 1.28 -> 1.20 ms, q8_0
1.36 -> 0.63 ms."""


def row_addresses(e: Emitter, places: Any, rows: int) -> list[Any]:
    """The int64 addresses at `places`."""
    return [e.load(e.at(places, 8 * i), I64, 8) for i in range(rows)]


def ask_ahead(e: Emitter, address: Any, unit: int, dtype: str) -> None:
    """Prefetch one unit of a cache row."""
    for line in range(0, unit_bytes(unit, dtype), 64):
        e.prefetch(e.at(address, line), _AHEAD_LEVEL)


def guarded_loop(e: Emitter, first: Any, stop: Any, body: Callable[[Any], None]) -> None:
    """`for i in range(first, stop): body(i)`, also for an empty range, which Emitter.loop does not allow."""
    b = e.b

    def run(i: Any, _: list[Any]) -> list[Any]:
        body(i)
        return []

    with b.if_then(b.icmp_signed("<", first, stop)):
        e.loop(stop, [], run, first)


def emit_weighted_values(e: Emitter, arguments: tuple[Any, ...], rows: int, unit: int, dtype: str) -> None:
    """out_i = factor_i * out_i + sum over positions of weights[p, i] * v_p, for float32 rows out_i.

    arguments: weights, v, v_stride, n_positions, n_units, addresses of the rows' states and of the rows, int64 [rows]
    each. weights float32 [BLOCK, rows]. Positions are summed in order.
    """
    b, n_units = e.b, arguments[4]
    columns = _Columns(e, arguments, rows, unit, dtype)
    together = max(1, min(4, 8 // rows))  # 16 accumulators of 2 vectors a unit, fewer of one row
    wide = b.udiv(n_units, e.i64(together))
    guarded_loop(e, e.i64(0), wide, lambda i: columns.emit(b.mul(i, e.i64(together)), together))
    if together > 1:
        guarded_loop(e, b.mul(wide, e.i64(together)), n_units, lambda i: columns.emit(i, 1))


class _Columns:
    """Emits the sums of some units of columns, for all rows."""

    def __init__(self, e: Emitter, arguments: tuple[Any, ...], rows: int, unit: int, dtype: str) -> None:
        self.e, self.unit, self.dtype, self.lanes = e, unit, dtype, min(unit, 16)
        self.weights, self.v, self.v_stride, self.n_positions = arguments[:4]
        self.states, self.outs = row_addresses(e, arguments[5], rows), row_addresses(e, arguments[6], rows)
        self.scaled = e.scratch(4 * 4 * BLOCK * rows) if dtype == "q8_0" else None

    def emit(self, u: Any, together: int) -> None:
        """Columns of units u..u + together - 1."""
        e, rows = self.e, len(self.outs)
        value_at = e.b.add(self.v, e.b.mul(u, e.i64(unit_bytes(self.unit, self.dtype))))
        weights = [self.weights] * together
        if self.dtype == "q8_0":
            weights = [e.at(self.scaled, 4 * BLOCK * rows * t) for t in range(together)]
            for t, to in enumerate(weights):
                self._scale_weights(e.at(value_at, t * unit_bytes(self.unit, self.dtype)), to)
        out_at = e.b.mul(u, e.i64(4 * self.unit))
        vectors = [(t, part) for t in range(together) for part in range(self.unit // self.lanes)]
        at_once = max(1, (16 if e.isa == "avx512vnni" else 4) // rows)
        for n in range(0, len(vectors), at_once):
            self._sum(vectors[n : n + at_once], value_at, weights, out_at)

    def _sum(self, vectors: list[tuple[int, int]], value_at: Any, weights: list[Any], out_at: Any) -> None:
        """Add the weighted values of all positions to some vectors, (unit, part) each, of all rows."""
        e, b, lanes, rows = self.e, self.e.b, self.lanes, len(self.outs)
        next_block = b.mul(self.v_stride, e.i64(BLOCK))
        factors = [e.splat(e.load(e.at(state, 8), F32, 4), lanes) for state in self.states]
        places = [
            e.at(b.add(row, out_at), 4 * (self.unit * t + lanes * part)) for row in self.outs for t, part in vectors
        ]
        sums = [b.fmul(e.load(to, vec(F32, lanes), 4), factors[n // len(vectors)]) for n, to in enumerate(places)]

        def position(p: Any, sums: list[Any]) -> list[Any]:
            value, weight_at = b.add(value_at, b.mul(p, self.v_stride)), b.mul(p, e.i64(4 * rows))
            units = {t: e.at(value, t * unit_bytes(self.unit, self.dtype)) for t, _ in vectors}
            for unit in units.values():
                ask_ahead(e, b.add(unit, next_block), self.unit, self.dtype)
            values = [self._load(units[t], part) for t, part in vectors]
            for i in range(rows):
                each = {t: e.splat(e.load(e.at(b.add(weights[t], weight_at), 4 * i), F32, 4), lanes) for t in units}
                for n, (t, _) in enumerate(vectors):
                    m = i * len(vectors) + n
                    sums[m] = e.fma(each[t], values[n], sums[m])
            return sums

        for to, total in zip(places, e.loop(self.n_positions, sums, position), strict=True):
            e.store(total, to, 4)

    def _load(self, place: Any, part: int) -> Any:
        """Vector `part` of the unit at `place`, as float32; of q8_0 without the scale."""
        e, kind = self.e, vec(F32, self.lanes)
        if self.dtype != "q8_0":
            return load_unit(e, place, self.unit, self.dtype)[part]
        quants = e.load(e.at(place, 2 + self.lanes * part), vec(I8, self.lanes))
        return e.b.sitofp(e.b.sext(quants, vec(I32, self.lanes)), kind)

    def _scale_weights(self, blocks: Any, to: Any) -> None:
        """Weights times the scale of each position's block, the first of which is at `blocks`."""
        e, b, rows = self.e, self.e.b, len(self.outs)
        n_tiles, first_of, stride = tiles(e, self.n_positions, self.v_stride)

        def tile(t: Any, _: list[Any]) -> list[Any]:
            first = first_of(t)
            start, at = b.add(blocks, b.mul(first, self.v_stride)), b.mul(first, e.i64(4 * rows))
            d = half_scales(e, [b.add(start, b.mul(stride, e.i64(j))) for j in range(TILE)])
            for n in range(rows):
                weights = e.load(e.at(b.add(self.weights, at), 4 * TILE * n), vec(F32, TILE), 4)
                each = e.shuffle(d, [(TILE * n + i) // rows for i in range(TILE)])
                e.store(b.fmul(weights, each), e.at(b.add(to, at), 4 * TILE * n), 4)
            return []

        e.loop(n_tiles, [], tile)
