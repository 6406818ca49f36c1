"""The online-softmax update of attention for one block of scores of several query rows, as vector IR.

Scores lie as float32 [block, rows], so a vector of 16 lanes holds 16 / rows positions of all rows. Sums over positions
are folded as if each row's scores lay side by side in vectors of 16 positions: in an order that does not depend on
the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.cpu.float_math import emit_exp
from kernels.cpu.vector_ir import F32, I32, I64, Emitter, vec

_LANES = 16


def emit_softmax_step(e: Emitter, arguments: tuple[Any, ...], rows: int, block: int) -> None:
    """Turn float32 scores [block, rows] into weights e^(score - m), in place; what a row does not see becomes 0.

    arguments: scores, the address of int32 [2, rows] first and stop position that each row sees, the address of the
    rows' state addresses int64 [rows]. state float32 [3]: the largest score m so far, the sum of weights l, and
    (written) the factor by which earlier sums must be multiplied because m grew. m starts at -inf, l at 0.
    """
    b, (scores, visible, places) = e.b, arguments
    states = [e.load(e.at(places, 8 * i), I64, 8) for i in range(rows)]
    old_max, old_sum = (_gathered(e, [e.at(state, 4 * k) for state in states]) for k in (0, 1))
    first, stop = (_repeated(e, e.load(e.at(visible, 4 * rows * k), vec(I32, rows), 4)) for k in (0, 1))
    n_seen = b.sub(stop, first)
    minus_inf = e.splat(e.f32(float("-inf")), _LANES)
    seen, values = [], []
    for part in range(rows * block // _LANES):
        positions = e.const(vec(I32, _LANES), [(_LANES * part + i) // rows for i in range(_LANES)])
        is_seen = b.icmp_unsigned("<", b.sub(positions, first), n_seen)
        seen.append(is_seen)
        values.append(b.select(is_seen, e.load(e.at(scores, 4 * _LANES * part), vec(F32, _LANES), 4), minus_inf))

    def larger(x: Any, y: Any) -> Any:
        return b.select(b.fcmp_ordered(">", x, y), x, y)  # a NaN that is lost here is in the weights

    new_max = larger(_over_positions(e, larger, values, rows), old_max)
    everywhere = _repeated(e, new_max)
    weights = []
    for part, (is_seen, value) in enumerate(zip(seen, values, strict=True)):
        weight = b.select(is_seen, emit_exp(e, b.fsub(value, everywhere)), e.zero(value.type))
        e.store(weight, e.at(scores, 4 * _LANES * part), 4)
        weights.append(weight)
    total = _over_positions(e, b.fadd, weights, rows)
    # equal maxima, both -inf included, leave earlier sums alone; -inf - -inf would be NaN
    grown = e.shuffle(emit_exp(e, _repeated(e, b.fsub(old_max, new_max))), range(rows))
    factor = b.select(b.fcmp_ordered("==", old_max, new_max), e.splat(e.f32(1.0), rows), grown)
    for k, vector in enumerate((new_max, e.fma(old_sum, factor, total), factor)):
        for i, state in enumerate(states):
            e.store(e.lane(vector, i), e.at(state, 4 * k), 4)


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


def _over_positions(e: Emitter, op: Callable[[Any, Any], Any], values: list[Any], rows: int) -> Any:
    """One lane a row: `op` over all positions of `values` [block, rows].

    With s[p] = (v[p] op v[p + 16]) op (v[p + 32] op v[p + 48]) for p < 16 the second half of s folds onto the first
    until one is left.
    """
    n = len(values) // 4  # vectors that hold 16 positions
    quarters = [values[k * n : (k + 1) * n] for k in range(4)]
    sums = [op(op(w, x), op(y, z)) for w, x, y, z in zip(*quarters, strict=True)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [op(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
    value, lanes = sums[0], _LANES
    while lanes > rows:
        lanes //= 2
        value = op(e.shuffle(value, range(lanes)), e.shuffle(value, range(lanes, 2 * lanes)))
    return value
