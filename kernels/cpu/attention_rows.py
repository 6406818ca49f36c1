"""The inner loops of attention over one block of at most BLOCK cache positions of one key/value head, as vector IR.

Four steps: the query rows of a group are packed once, then each block takes scores against its keys, the online-softmax
update, and the weighted sum of its values. Each is emitted for a number of query rows (one of SIZES), which go through
a block together, so that a key or value is read and converted once for all of them; scores and weights lie as float32
[BLOCK, rows], so that the lanes of a vector are several positions of all rows and softmax needs no sums over lanes but
the last. Cache rows are read in units of 32 components, or of 8 where 32 does not divide the width. A query row's
result is the same whether it is computed alone or beside others. Arguments are int64 addresses and counts; strides are
in bytes.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import attention_q8_0_scores, attention_q8_0_values
from kernels.cpu.attention_softmax import emit_softmax_step
from kernels.cpu.attention_values import BLOCK, ask_ahead, emit_weighted_values, guarded_loop, row_addresses
from kernels.cpu.features import TARGET
from kernels.cpu.kv_quant import load_unit, unit_bytes
from kernels.cpu.native import address_of
from kernels.cpu.vector_ir import F32, Emitter, vec

SIZES = (8, 4, 2, 1) if TARGET.isa == "avx512vnni" else (4, 2, 1)
"""Query rows that can share one read of a key or value. Eight rows times two vectors of values are 16 of the 32
registers of AVX512; other sets have half as many of half the width."""


def emit_pack(e: Emitter, arguments: tuple[Any, ...], rows: int, unit: int) -> None:
    """Lay `rows` float32 query rows side by side, unit after unit: packed float32 [n_units, rows, unit].

    arguments: address of the rows' addresses int64 [rows], n_units, packed.
    """
    b, (places, n_units, packed) = e.b, arguments
    addresses = row_addresses(e, places, rows)

    def one(u: Any, _: list[Any]) -> list[Any]:
        at, to = b.mul(u, e.i64(4 * unit)), b.add(packed, b.mul(u, e.i64(4 * unit * rows)))
        for i, row in enumerate(addresses):
            e.store(e.load(b.add(row, at), vec(F32, unit)), e.at(to, 4 * unit * i))
        return []

    e.loop(n_units, [], one)


def emit_scores(e: Emitter, arguments: tuple[Any, ...], rows: int, unit: int, dtype: str) -> None:
    """out[p, i] = scale * q_i . k_p for `rows` packed query rows and n_positions rows of keys; out float32 [BLOCK,
    rows].

    arguments: k, k_stride, n_positions, n_units, address of the float32 scale, packed, out.
    """
    b, lanes = e.b, min(unit, 16)
    k, k_stride, n_positions, n_units, scale_at, packed, out = arguments
    scale = e.load(scale_at, F32, 4)
    next_block = b.mul(k_stride, e.i64(BLOCK))

    def group(first: Any, width: int) -> None:
        """Scores of `width` positions from `first` on."""
        keys = [b.add(k, b.mul(e.at(first, j), k_stride)) for j in range(width)]

        def step(u: Any, sums: list[Any]) -> list[Any]:
            at, query = b.mul(u, e.i64(unit_bytes(unit, dtype))), b.add(packed, b.mul(u, e.i64(4 * unit * rows)))
            places = [b.add(key, at) for key in keys]
            for place in places:
                ask_ahead(e, b.add(place, next_block), unit, dtype)
            parts = [load_unit(e, place, unit, dtype) for place in places]
            for part in range(unit // lanes):
                for i in range(rows):
                    q = e.load(e.at(query, 4 * (unit * i + lanes * part)), vec(F32, lanes), 4)
                    for j in range(width):
                        n = j * rows + i
                        sums[n] = e.fma(q, parts[j][part], sums[n])
            return sums

        sums = e.loop(n_units, [e.zero(vec(F32, lanes))] * (rows * width), step)
        to = b.add(out, b.mul(first, e.i64(4 * rows)))
        for i, scores in enumerate(_horizontal_sums(e, sums)):
            e.store(b.fmul(scores, e.splat(scale, scores.type.count)), e.at(to, 4 * lanes * i), 4)

    # 16 sums in the 32 registers of AVX512, a quarter else: each load is used several times, and lanes of several sums
    # are added at once
    together = {1: 8, 2: 8, 4: 4, 8: 2}[rows] if e.isa == "avx512vnni" else 4 // rows
    wide = b.udiv(n_positions, e.i64(together))
    guarded_loop(e, e.i64(0), wide, lambda i: group(b.mul(i, e.i64(together)), together))
    if together > 1:
        guarded_loop(e, b.mul(wide, e.i64(together)), n_positions, lambda i: group(i, 1))


def _horizontal_sums(e: Emitter, values: list[Any]) -> list[Any]:
    """The sum over the lanes of each vector of `values`, in their order, packed into vectors of at most as many lanes;
    there are a power of two of them.

    Two vectors become one that holds halves of both, until one is left. Worked example, 4 lanes: [a0 a1 a2 a3], [b0 b1
    b2 b3] -> [a0 b0 a1 b1] + [a2 b2 a3 b3]; beside the same of c, d -> [a02 b02 c02 d02] + [a13 b13 c13 d13]. The first
    steps, of most vectors, stay within 128 bits: shuffles across those compete with multiply-adds, others do not.
    """
    lanes = values[0].type.count
    if len(values) > lanes:
        return [s for n in range(0, len(values), lanes) for s in _horizontal_sums(e, values[n : n + lanes])]
    n_values = len(values)
    for low, high in _folds(lanes):
        pairs = list(zip(values[::2], values[1::2], strict=True)) if len(values) > 1 else [(values[0], values[0])]
        values = [e.b.fadd(e.shuffle(x, low, y), e.shuffle(x, high, y)) for x, y in pairs]
    return [e.shuffle(values[0], range(n_values))] if n_values < lanes else values


def _folds(lanes: int) -> list[tuple[list[int], list[int]]]:
    """What each step of _horizontal_sums adds up: lanes of two vectors, those of the second `lanes` higher."""
    quads, second = range(0, lanes, 4), (0, lanes)
    within = [
        [q + i + s for q in quads for i in (0, 1) for s in second],
        [q + i + s for q in quads for s in second for i in (0, 1)],
    ]
    folds = [(low, [lane + 2 for lane in low]) for low in within]
    # first lanes of quads, and how far away their partners are
    across: list[tuple[tuple[int, ...], int]] = [((0, 4), 8), ((0, 8), 4)] if lanes == 16 else [((0,), 4)]
    for kept, distance in across:
        low = [s + q + i for s in second for q in kept for i in range(4)]
        folds.append((low, [lane + distance for lane in low]))
    return folds


def packed_row_bytes(head_dim: int) -> int:
    """Bytes of a packed query row in either form."""
    return 4 * head_dim + 16


def _by_bytes(dtype: str) -> bool:
    """Whether keys and values are multiplied as bytes."""
    return dtype == "q8_0" and TARGET.isa == "avx512vnni"


def pack_address(rows: int, unit: int, dtype: str) -> int:
    if _by_bytes(dtype):
        return address_of(f"attention_digits_{rows}", 3, lambda e, *a: attention_q8_0_scores.emit_pack(e, a, rows))
    return address_of(f"attention_pack_{unit}_{rows}", 3, lambda e, *a: emit_pack(e, a, rows, unit))


def scores_address(rows: int, unit: int, dtype: str) -> int:
    name = f"attention_scores_{dtype}_{unit}_{rows}"
    if _by_bytes(dtype):
        return address_of(name, 7, lambda e, *a: attention_q8_0_scores.emit_scores(e, a, rows, BLOCK))
    return address_of(name, 7, lambda e, *a: emit_scores(e, a, rows, unit, dtype))


def softmax_address(rows: int) -> int:
    return address_of(f"attention_softmax_{rows}", 3, lambda e, *a: emit_softmax_step(e, a, rows, BLOCK))


def values_address(rows: int, unit: int, dtype: str) -> int:
    name = f"attention_values_{dtype}_{unit}_{rows}"
    if _by_bytes(dtype):
        return address_of(name, 7, lambda e, *a: attention_q8_0_values.emit_weighted_values(e, a, rows, BLOCK))
    return address_of(name, 7, lambda e, *a: emit_weighted_values(e, a, rows, unit, dtype))
