"""Dots of nibbles by halves of their groups of 32, as vector IR: low nibbles of several groups make one vector, high
nibbles another, so that no nibble has to be moved.

A group is 16 bytes: the low nibble of byte i is weight i, the high one weight 16 + i. As many groups go together as
two vectors hold (four with 512-bit vectors, else two); `by_halves` lays activations out to match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernels.cpu.bit_fields import shifted
from kernels.cpu.vector_ir import I8, I16, I32, Emitter, vec


def groups_together(e: Emitter) -> int:
    return 2 * e.groups_at_once


def by_halves(e: Emitter, n_cols: Any, record: Any) -> Any:
    """Address of a copy of the int8 at `record`, of whole 256s alone: of `groups_together` groups the first 16 of
    each, then the second 16 of each. The copy is on the stack of the function; it costs a part of one row's dot, and
    saves each row its shuffles.
    """
    b, n, place = e.b, groups_together(e), e.scratch_of(n_cols)

    def copy(i: Any, _: list[Any]) -> list[Any]:
        at = b.mul(i, e.i64(32 * n))
        first, second = (e.load(e.at(b.add(record, at), 16 * n * k), vec(I8, 16 * n)) for k in (0, 1))
        for half in (0, 1):
            lanes = [32 * k + 16 * half + j for k in range(n) for j in range(16)]
            e.store(e.shuffle(first, lanes, second), e.at(b.add(place, at), 16 * n * half))
        return []

    e.loop_or_skip(b.mul(b.lshr(n_cols, e.i64(8)), e.i64(8 // n)), [], copy)
    return place


def starts(e: Emitter, n_cols: Any, bias: Any, offset: int) -> Any:
    """Address of int32 [4] for each group of whole 256s: -offset * the sum of its activations, and zeros. There sums of
    products of codes start that are `offset` higher than they mean. On the stack of the function, like the copy.

    bias: address of int32, -128 times the sum of each group.
    """
    b, kind, place = e.b, vec(I32, 8), e.scratch_of(n_cols, 1)

    def copy(i: Any, _: list[Any]) -> list[Any]:
        sums = b.ashr(e.load(b.add(bias, b.shl(i, e.i64(5))), kind, 4), e.const(kind, 7))
        values = b.mul(sums, e.const(kind, offset))
        for half in (0, 1):
            lanes = [lane for k in range(4) for lane in (4 * half + k, 8, 8, 8)]
            e.store(e.shuffle(values, lanes, e.zero(kind)), e.at(b.add(place, b.shl(i, e.i64(7))), 64 * half), 64)
        return []

    e.loop_or_skip(b.lshr(n_cols, e.i64(8)), [], copy)
    return place


def dot_of_halves(
    e: Emitter,
    packed: Any,
    x: Any,
    table: Sequence[int] | None,
    signed: bool,
    start: Any = None,
    more_bits: Sequence[Any] | None = None,
) -> Any:
    """int32 lanes, 4 a group: 4-sums of a group's first half plus those of its second, plus what is at address `start`.
    Codes are the nibbles of `packed`, or what `table` says for each, with `more_bits` of either half; activations are
    at `x`, by halves."""
    kind = vec(I32, packed.type.count // 4)
    found = e.zero(kind) if start is None else e.load(start, kind, 4 * kind.count)
    for half in (0, 1):
        codes = _codes(e, packed, half, table)
        if more_bits is not None:
            codes = e.b.or_(codes, more_bits[half])
        activations = e.load(e.at(x, packed.type.count * half), packed.type)
        found = e.dot(found, codes, activations, signed)
    return found


def _codes(e: Emitter, packed: Any, half: int, table: Sequence[int] | None) -> Any:
    """The low (half 0) or high nibbles of bytes, or what `table` says for each."""
    if table is None:
        return shifted(e, packed, 4 * half, 15)
    if not e.permutes_bytes or packed.type.count != 64:
        return e.lookup(table, shifted(e, packed, 4 * half, 15))
    if half:
        words = e.b.bitcast(packed, vec(I16, packed.type.count // 2))
        packed = e.b.bitcast(e.b.lshr(words, e.const(words.type, 4)), packed.type)
    return e.lookup_of_low(table, packed)
