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
from kernels.cpu.vector_ir import F32, I32, Emitter, vec

BLOCK = 64
"""Positions of a block: its keys and values (64 x 128 halves = 16 KiB each) stay in the first-level cache."""

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

    def position(p: Any, _: list[Any]) -> list[Any]:
        key = b.add(k, b.mul(p, k_stride))

        def step(u: Any, sums: list[Any]) -> list[Any]:
            key_parts = load_unit(e, b.add(key, b.mul(u, e.i64(unit_bytes(unit, dtype)))), unit, dtype)
            at = b.mul(u, e.i64(4 * unit))
            for part, key_part in enumerate(key_parts):
                for i, row in enumerate(q_rows):
                    query_part = e.load(e.at(b.add(row, at), 4 * lanes * part), vec(F32, lanes))
                    sums[i] = e.fma(query_part, key_part, sums[i])
            return sums

        sums = e.loop(n_units, [e.zero(vec(F32, lanes))] * queries, step)
        for i, total in enumerate(sums):
            score = b.fmul(e.reduce(b.fadd, total, lanes), scale)
            e.store(score, b.add(e.at(out, 4 * BLOCK * i), b.shl(p, e.i64(2))), 4)
        return []

    e.loop(n_positions, [], position)


def emit_softmax_step(e: Emitter, scores: Any, first: Any, stop: Any, state: Any) -> None:
    """Turn float32 scores [BLOCK] into weights e^(score - m); those outside first..stop-1 become 0 whatever they held.

    state float32 [3]: the largest score m so far, the sum of weights l, and (written) the factor by which earlier sums
    must be multiplied because m grew. m starts at -inf, l at 0.
    """
    b = e.b
    v16 = vec(F32, 16)
    lane_ids = e.const(vec(I32, 16), list(range(16)))
    first_lanes, stop_lanes = (e.splat(b.trunc(v, I32), 16) for v in (first, stop))
    minus_inf = e.splat(e.f32(float("-inf")), 16)
    visible, values = [], []
    for part in range(BLOCK // 16):
        ids = b.add(lane_ids, e.const(vec(I32, 16), 16 * part))
        seen = b.and_(b.icmp_signed(">=", ids, first_lanes), b.icmp_signed("<", ids, stop_lanes))
        visible.append(seen)
        values.append(b.select(seen, e.load(e.at(scores, 64 * part), v16, 4), minus_inf))

    def larger(x: Any, y: Any) -> Any:
        return e.call("llvm.maximum", x.type, [x, y])

    largest = larger(larger(values[0], values[1]), larger(values[2], values[3]))
    old_max = e.load(state, F32, 4)
    new_max = larger(e.reduce(larger, largest, 16), old_max)
    weights = []
    for part, (seen, value) in enumerate(zip(visible, values, strict=True)):
        weight = b.select(seen, emit_exp(e, b.fsub(value, e.splat(new_max, 16))), e.zero(v16))
        e.store(weight, e.at(scores, 64 * part), 4)
        weights.append(weight)
    total = e.reduce(b.fadd, b.fadd(b.fadd(weights[0], weights[1]), b.fadd(weights[2], weights[3])), 16)
    # equal maxima, both -inf included, leave earlier sums alone; -inf - -inf would be NaN
    grown = e.lane(emit_exp(e, e.splat(b.fsub(old_max, new_max), 16)), 0)
    factor = b.select(b.fcmp_ordered("==", old_max, new_max), e.f32(1.0), grown)
    e.store(new_max, state, 4)
    e.store(e.fma(e.load(e.at(state, 4), F32, 4), factor, total), e.at(state, 4), 4)
    e.store(factor, e.at(state, 8), 4)


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


def softmax_address() -> int:
    return address_of("attention_softmax", 4, emit_softmax_step)


def values_address(queries: int, unit: int, dtype: str) -> int:
    name = f"attention_values_{dtype}_{unit}_{queries}"
    return address_of(
        name, 5 + 2 * queries, lambda e, *arguments: emit_weighted_values(e, arguments, queries, unit, dtype)
    )
