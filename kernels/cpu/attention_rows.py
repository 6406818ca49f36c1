"""The inner loops of attention over one block of at most BLOCK cache positions of one key/value head, as vector IR.

Three steps a block: scores of QUERIES query rows against the keys, the online-softmax update of one row, and the
weighted sum of values. Each is emitted for one cache type ("f32", "f16", "q8_0") and row unit: rows are read 32
components a step, or 8 where 32 does not divide the width. A query row's result is the same whether it is computed
alone or beside others. Arguments are int64 addresses and counts; strides are in bytes.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.float_math import emit_exp
from kernels.cpu.kv_quant import load_unit, unit_bytes
from kernels.cpu.native import address_of
from kernels.cpu.vector_ir import F32, I32, I64, Emitter, vec

BLOCK = 64
"""Positions of a block: its keys and values (64 x 128 halves = 16 KiB each) stay in the first-level cache."""

_AHEAD_LEVEL = 2
"""Each read asks for its place one block later, into the second-level cache: the processor's own prefetching starts
anew with every block of keys and of values. 4096 positions, 16 heads of 128, two threads: f16 1.28 -> 1.20 ms, q8_0
1.36 -> 0.63 ms."""

QUERIES = 4
"""Query rows that share one read of a key or value: 4 rows x 4 vectors of values fill half of 32 registers."""


def emit_scores(e: Emitter, arguments: tuple[Any, ...], queries: int, unit: int, dtype: str) -> None:
    """out[i, p] = scale * q_i . k_p for `queries` float32 rows and n_positions rows of keys; out float32 [queries,
    BLOCK].

    arguments: k, k_stride, n_positions, n_units, address of the float32 scale, out, then the address of each query row.
    """
    b, lanes = e.b, min(unit, 16)
    (k, k_stride, n_positions, n_units, scale_at, out), q_rows = arguments[:6], arguments[6:]
    scale = e.load(scale_at, F32, 4)
    next_block = b.mul(k_stride, e.i64(BLOCK))

    def group(first: Any, width: int) -> None:
        """Scores of `width` positions from `first` on."""
        keys = [b.add(k, b.mul(e.at(first, j), k_stride)) for j in range(width)]

        def step(u: Any, sums: list[Any]) -> list[Any]:
            at, key_at = b.mul(u, e.i64(4 * unit)), b.mul(u, e.i64(unit_bytes(unit, dtype)))
            for key in keys:
                _ask_ahead(e, b.add(b.add(key, key_at), next_block), unit, dtype)
            key_parts = [load_unit(e, b.add(key, key_at), unit, dtype) for key in keys]
            for part in range(unit // lanes):
                for i, row in enumerate(q_rows):
                    query_part = e.load(e.at(b.add(row, at), 4 * lanes * part), vec(F32, lanes))
                    for j in range(width):
                        n = i * width + j
                        sums[n] = e.fma(query_part, key_parts[j][part], sums[n])
            return sums

        sums = e.loop(n_units, [e.zero(vec(F32, lanes))] * (queries * width), step)
        scores = _horizontal_sums(e, sums)
        for i in range(queries):
            place = b.add(e.at(out, 4 * BLOCK * i), b.shl(first, e.i64(2)))
            vector, lane = scores[i * width // lanes], i * width % lanes
            row = e.shuffle(vector, list(range(lane, lane + width)))
            e.store(b.fmul(row, e.splat(scale, width)), place, 4)

    # sums of 4 rows x 4 positions, or of 8 positions of one row, in the 32 registers of AVX512, half as many else: each
    # load is used several times, and lanes of several sums are added at once
    together = {1: 8, QUERIES: 4}[queries] if e.isa == "avx512vnni" else {1: 4, QUERIES: 1}[queries]
    wide = b.udiv(n_positions, e.i64(together))
    _guarded_loop(e, e.i64(0), wide, lambda i: group(b.mul(i, e.i64(together)), together))
    if together > 1:
        _guarded_loop(e, b.mul(wide, e.i64(together)), n_positions, lambda i: group(i, 1))


def _ask_ahead(e: Emitter, address: Any, unit: int, dtype: str) -> None:
    """Prefetch one unit of a cache row."""
    for line in range(0, unit_bytes(unit, dtype), 64):
        e.prefetch(e.at(address, line), _AHEAD_LEVEL)


def _horizontal_sums(e: Emitter, values: list[Any]) -> list[Any]:
    """The sum over the lanes of each vector of `values`, in their order, packed into vectors of as many lanes.

    Upper halves fold onto lower halves as in `Emitter.reduce`, two vectors at a time: a sum has the same bits whatever
    it is packed with. Worked example, 4 lanes: [a0 a1 a2 a3], [b0 b1 b2 b3] -> [a0+a2 a1+a3 b0+b2 b1+b3]; next to the
    same of c, d -> [a b c d].
    """
    lanes = values[0].type.count
    half = lanes // 2
    while half:
        if len(values) % 2:
            values = [*values, values[-1]]
        starts = range(0, 2 * lanes, 2 * half)
        low = [first + i for first in starts for i in range(half)]
        values = [
            e.b.fadd(e.shuffle(x, low, y), e.shuffle(x, [i + half for i in low], y))
            for x, y in zip(values[::2], values[1::2], strict=True)
        ]
        half //= 2
    return values


def emit_softmax_step(e: Emitter, arguments: tuple[Any, ...], queries: int) -> None:
    """Turn float32 scores [queries, BLOCK] into weights e^(score - m), row by row; what a row does not see becomes 0.

    arguments: scores, the address of int64 [queries, 2] first and stop position that each row sees, then the address of
    each row's state. state float32 [3]: the largest score m so far, the sum of weights l, and (written) the factor by
    which earlier sums must be multiplied because m grew. m starts at -inf, l at 0.
    """
    scores, visible, states = arguments[0], arguments[1], arguments[2:]
    rows = []
    # all rows are read before any is written, so that their long chains of exp can overlap
    for i, state in enumerate(states):
        first, stop = (e.splat(e.b.trunc(e.load(e.at(visible, 16 * i + 8 * k), I64, 8), I32), 16) for k in (0, 1))
        parts = [e.load(e.at(scores, 4 * BLOCK * i + 64 * part), vec(F32, 16), 4) for part in range(BLOCK // 16)]
        rows.append(_softmax_row(e, parts, first, stop, e.load(state, F32, 4), e.load(e.at(state, 4), F32, 4)))
    for i, (state, (weights, new_state)) in enumerate(zip(states, rows, strict=True)):
        for part, weight in enumerate(weights):
            e.store(weight, e.at(scores, 4 * BLOCK * i + 64 * part), 4)
        for k, value in enumerate(new_state):
            e.store(value, e.at(state, 4 * k), 4)


def _softmax_row(
    e: Emitter, scores: list[Any], first: Any, stop: Any, old_max: Any, old_sum: Any
) -> tuple[list[Any], tuple[Any, Any, Any]]:
    """(weights, (new m, new l, factor)) of one row; first and stop are splat over 16 int32 lanes."""
    b = e.b

    def larger(x: Any, y: Any) -> Any:
        return e.call("llvm.maximum", x.type, [x, y])

    minus_inf = e.splat(e.f32(float("-inf")), 16)
    visible, values = [], []
    for part, score in enumerate(scores):
        ids = e.const(vec(I32, 16), list(range(16 * part, 16 * part + 16)))
        seen = b.and_(b.icmp_signed(">=", ids, first), b.icmp_signed("<", ids, stop))
        visible.append(seen)
        values.append(b.select(seen, score, minus_inf))
    largest = larger(larger(values[0], values[1]), larger(values[2], values[3]))
    new_max = larger(e.reduce(larger, largest, 16), old_max)
    weights = [
        b.select(seen, emit_exp(e, b.fsub(value, e.splat(new_max, 16))), e.zero(value.type))
        for seen, value in zip(visible, values, strict=True)
    ]
    total = e.reduce(b.fadd, b.fadd(b.fadd(weights[0], weights[1]), b.fadd(weights[2], weights[3])), 16)
    # equal maxima, both -inf included, leave earlier sums alone; -inf - -inf would be NaN
    grown = e.lane(emit_exp(e, e.splat(b.fsub(old_max, new_max), 4)), 0)
    factor = b.select(b.fcmp_ordered("==", old_max, new_max), e.f32(1.0), grown)
    return weights, (new_max, e.fma(old_sum, factor, total), factor)


def emit_weighted_values(e: Emitter, arguments: tuple[Any, ...], queries: int, unit: int, dtype: str) -> None:
    """out_i = factor_i * out_i + sum over positions of weights[i, p] * v_p, for float32 rows out0.. .

    arguments: weights, v, v_stride, n_positions, n_units, then the address of each row's factor, then of each row.
    weights float32 [queries, BLOCK]. Positions are summed in order.
    """
    b = e.b
    weights, v, v_stride, n_positions, n_units = arguments[:5]
    factors, rows = arguments[5 : 5 + queries], arguments[5 + queries :]
    # 16 accumulators: 1 row x 4 units, or 4 rows x 2 units, of 2 vectors each
    together = 4 if queries == 1 else 2
    wide = b.udiv(n_units, e.i64(together))
    columns = _emit_value_columns(e, (weights, v, v_stride, n_positions, factors), rows, unit, dtype)
    _guarded_loop(e, e.i64(0), wide, lambda i: columns(b.mul(i, e.i64(together)), together))
    _guarded_loop(e, b.mul(wide, e.i64(together)), n_units, lambda i: columns(i, 1))


def _guarded_loop(e: Emitter, first: Any, stop: Any, body: Any) -> None:
    """`for i in range(first, stop): body(i)`, also for an empty range, which Emitter.loop does not allow."""
    b = e.b

    def run(i: Any, _: list[Any]) -> list[Any]:
        body(i)
        return []

    with b.if_then(b.icmp_signed("<", first, stop)):
        e.loop(stop, [], run, first)


def _emit_value_columns(e: Emitter, common: tuple[Any, ...], rows: tuple[Any, ...], unit: int, dtype: str) -> Any:
    """A function that emits the sums of `together` units of columns from unit `u` on, for all rows."""
    b, lanes = e.b, min(unit, 16)
    weights, v, v_stride, n_positions, factor_places = common
    next_block = b.mul(v_stride, e.i64(BLOCK))
    per_unit = unit // lanes

    def columns(u: Any, together: int) -> None:
        at = b.mul(u, e.i64(4 * unit))
        places = [(row, 4 * lanes * part) for row in rows for part in range(together * per_unit)]
        factors = [e.splat(e.load(place, F32, 4), lanes) for place in factor_places]
        sums = [
            b.fmul(e.load(e.at(b.add(row, at), place), vec(F32, lanes)), factors[n // (together * per_unit)])
            for n, (row, place) in enumerate(places)
        ]
        value_at = b.add(v, b.mul(u, e.i64(unit_bytes(unit, dtype))))

        def position(p: Any, sums: list[Any]) -> list[Any]:
            value = b.add(value_at, b.mul(p, v_stride))
            for t in range(together):
                _ask_ahead(e, b.add(e.at(value, t * unit_bytes(unit, dtype)), next_block), unit, dtype)
            parts = [
                part
                for t in range(together)
                for part in load_unit(e, e.at(value, t * unit_bytes(unit, dtype)), unit, dtype)
            ]
            for i in range(len(rows)):
                weight = e.load(b.add(e.at(weights, 4 * BLOCK * i), b.shl(p, e.i64(2))), F32, 4)
                weight = e.splat(weight, lanes)
                for n, part in enumerate(parts):
                    sums[i * len(parts) + n] = e.fma(weight, part, sums[i * len(parts) + n])
            return sums

        sums = e.loop(n_positions, sums, position)
        for (row, place), total in zip(places, sums, strict=True):
            e.store(total, e.at(b.add(row, at), place))

    return columns


def scores_address(queries: int, unit: int, dtype: str) -> int:
    name = f"attention_scores_{dtype}_{unit}_{queries}"
    return address_of(name, 6 + queries, lambda e, *arguments: emit_scores(e, arguments, queries, unit, dtype))


def softmax_address(queries: int) -> int:
    name = f"attention_softmax_{queries}"
    return address_of(name, 2 + queries, lambda e, *arguments: emit_softmax_step(e, arguments, queries))


def values_address(queries: int, unit: int, dtype: str) -> int:
    name = f"attention_values_{dtype}_{unit}_{queries}"
    return address_of(
        name, 5 + 2 * queries, lambda e, *arguments: emit_weighted_values(e, arguments, queries, unit, dtype)
    )
