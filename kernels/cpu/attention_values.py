"""The weighted sum of values of attention over one block of cache positions, as vector IR.

Every number of query rows sums positions in order, one after the other. Weights of q8_0 values take the blocks' scales
first, so that the values themselves need no multiplication.
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
        e, b, unit, lanes, rows = self.e, self.e.b, self.unit, self.lanes, len(self.outs)
        at, parts = b.mul(u, e.i64(4 * unit)), unit // lanes
        value_at = b.add(self.v, b.mul(u, e.i64(unit_bytes(unit, self.dtype))))
        offsets = [t * unit_bytes(unit, self.dtype) for t in range(together)]
        weights = [self.weights] * together
        if self.dtype == "q8_0":
            weights = [e.at(self.scaled, 4 * BLOCK * rows * t) for t in range(together)]
            for offset, to in zip(offsets, weights, strict=True):
                self._scale_weights(e.at(value_at, offset), to)
        places = [e.at(b.add(row, at), 4 * lanes * n) for row in self.outs for n in range(together * parts)]
        factors = [e.splat(e.load(e.at(state, 8), F32, 4), lanes) for state in self.states]
        sums = [b.fmul(e.load(to, vec(F32, lanes), 4), factors[n // (together * parts)]) for n, to in enumerate(places)]

        def position(p: Any, sums: list[Any]) -> list[Any]:
            value, weight_at = b.add(value_at, b.mul(p, self.v_stride)), b.mul(p, e.i64(4 * rows))
            for offset in offsets:
                ask_ahead(e, b.add(e.at(value, offset), next_block), unit, self.dtype)
            values = [self._load(e.at(value, offset)) for offset in offsets]
            for i in range(rows):
                for t in range(together):
                    weight = e.splat(e.load(e.at(b.add(weights[t], weight_at), 4 * i), F32, 4), lanes)
                    for part in range(parts):
                        n = (i * together + t) * parts + part
                        sums[n] = e.fma(weight, values[t][part], sums[n])
            return sums

        next_block = b.mul(self.v_stride, e.i64(BLOCK))
        for to, total in zip(places, e.loop(self.n_positions, sums, position), strict=True):
            e.store(total, to, 4)

    def _load(self, place: Any) -> list[Any]:
        e = self.e
        if self.dtype != "q8_0":
            return load_unit(e, place, self.unit, self.dtype)
        quants = [e.load(e.at(place, 2 + self.lanes * n), vec(I8, self.lanes)) for n in (0, 1)]
        return [e.b.sitofp(e.b.sext(q, vec(I32, self.lanes)), vec(F32, self.lanes)) for q in quants]

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
