"""The online-softmax update of attention for one block of scores of several query rows, as vector IR.

Scores lie as float32 [block, rows], so a vector of 16 lanes holds 16 / rows positions of all rows. Sums over positions
are folded as if each row's scores lay side by side in vectors of 16 positions: in an order that does not depend on
the number of rows. Powers are of two, which takes half of the arithmetic of e^x: whoever makes the scores multiplies
them by LOG2_E.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.cpu.float_math import emit_exp2
from kernels.cpu.vector_ir import F32, I32, I64, Emitter, vec

_LANES = 16
_KIND = vec(F32, _LANES)


def emit_softmax_step(e: Emitter, arguments: tuple[Any, ...], rows: int, block: int) -> None:
    """Turn float32 scores [block, rows] into weights 2^(score - m), in place; what a row does not see becomes 0.

    arguments: scores, the address of int32 [2, rows] first and stop position that each row sees, the address of the
    rows' state addresses int64 [rows]. state float32 [3]: the largest score m so far, the sum of weights l, and
    (written) the factor by which earlier sums must be multiplied because m grew. m starts at -inf, l at 0.
    """
    b, (scores, visible, places) = e.b, arguments
    states = [e.load(e.at(places, 8 * i), I64, 8) for i in range(rows)]
    old_max, old_sum = (_gathered(e, [e.at(state, 4 * k) for state in states]) for k in (0, 1))
    _hide_unseen(e, scores, visible, rows, block)
    minus_inf = e.splat(e.f32(float("-inf")), _LANES)

    def larger(x: Any, y: Any) -> Any:
        return b.select(b.fcmp_ordered(">", x, y), x, y)  # a NaN that is lost here is in the weights

    def largest(_: Any, vectors: list[Any], found: list[Any]) -> list[Any]:
        return [larger(e.load(place, _KIND, 4), m) for place, m in zip(vectors, found, strict=True)]

    maxima = _each_vector(e, scores, rows, block, [minus_inf] * rows, largest)
    new_max = larger(over_positions(e, larger, maxima, rows), old_max)
    # of a row that has seen nothing yet, scores are -inf: less 0 they have no weight, less -inf they were NaN
    base = b.select(b.fcmp_ordered("==", new_max, e.splat(e.f32(float("-inf")), rows)), e.zero(new_max.type), new_max)
    everywhere = _repeated(e, base)

    def weigh(_: Any, vectors: list[Any], sums: list[Any]) -> list[Any]:
        weights = [emit_exp2(e, b.fsub(e.load(place, _KIND, 4), everywhere)) for place in vectors]
        for place, weight in zip(vectors, weights, strict=True):
            e.store(weight, place, 4)
        return [b.fadd(total, weight) for total, weight in zip(sums, weights, strict=True)]

    total = over_positions(e, b.fadd, _each_vector(e, scores, rows, block, [e.zero(_KIND)] * rows, weigh), rows)
    grown = e.shuffle(emit_exp2(e, _repeated(e, b.fsub(old_max, base))), range(rows))
    factor = b.select(b.fcmp_ordered("==", old_max, new_max), e.splat(e.f32(1.0), rows), grown)
    for k, vector in enumerate((new_max, e.fma(old_sum, factor, total), factor)):
        for i, state in enumerate(states):
            e.store(e.lane(vector, i), e.at(state, 4 * k), 4)


def _each_vector(
    e: Emitter,
    scores: Any,
    rows: int,
    block: int,
    carried: list[Any],
    body: Callable[[Any, list[Any], list[Any]], list[Any]],
) -> list[Any]:
    """Thread `carried` through body(first position, addresses of the `rows` vectors of 16 positions, carried)."""
    b = e.b

    def step(t: Any, values: list[Any]) -> list[Any]:
        start = b.add(scores, b.mul(t, e.i64(4 * _LANES * rows)))
        return body(b.mul(t, e.i64(_LANES)), [e.at(start, 4 * _LANES * n) for n in range(rows)], values)

    return e.loop(e.i64(block // _LANES), carried, step)


def _hide_unseen(e: Emitter, scores: Any, visible: Any, rows: int, block: int) -> None:
    """Scores that a row does not see become -inf; nothing is written where every row sees the whole block."""
    b = e.b
    first, stop = (e.load(e.at(visible, 4 * rows * k), vec(I32, rows), 4) for k in (0, 1))
    partly = b.or_(
        b.icmp_signed(">", first, e.zero(first.type)), b.icmp_signed("<", stop, e.const(stop.type, block))
    )
    firsts, n_seen = _repeated(e, first), _repeated(e, b.sub(stop, first))
    minus_inf = e.splat(e.f32(float("-inf")), _LANES)

    def hide(start: Any, vectors: list[Any], _: list[Any]) -> list[Any]:
        for n, place in enumerate(vectors):
            within = e.const(vec(I32, _LANES), [(_LANES * n + i) // rows for i in range(_LANES)])
            positions = b.add(within, e.splat(b.trunc(start, I32), _LANES))
            seen = b.icmp_unsigned("<", b.sub(positions, firsts), n_seen)
            e.store(b.select(seen, e.load(place, _KIND, 4), minus_inf), place, 4)
        return []

    with b.if_then(e.reduce(b.or_, partly, rows)):
        _each_vector(e, scores, rows, block, [], hide)


def _gathered(e: Emitter, places: list[Any]) -> Any:
    """The float32 at each address, as lanes."""
    found = e.zero(vec(F32, len(places)))
    for i, place in enumerate(places):
        found = e.b.insert_element(found, e.load(place, F32, 4), e.i32(i))
    return found


def _repeated(e: Emitter, vector: Any) -> Any:
    """`vector` of one lane a row, again and again up to _LANES."""
    rows = vector.type.count
    return e.shuffle(vector, [i % rows for i in range(_LANES)])


def over_positions(e: Emitter, op: Callable[[Any, Any], Any], values: list[Any], rows: int) -> Any:
    """One lane a row: `op` over the 16 positions of `values` [16, rows], the second half folded onto the first until
    one is left.
    """
    while len(values) > 1:
        half = len(values) // 2
        values = [op(x, y) for x, y in zip(values[:half], values[half:], strict=True)]
    value, lanes = values[0], _LANES
    while lanes > rows:
        lanes //= 2
        value = op(e.shuffle(value, range(lanes)), e.shuffle(value, range(lanes, 2 * lanes)))
    return value
