"""Dots of nibbles by halves of their groups of 32, as vector IR: low nibbles of several groups make one vector, high
nibbles another, so that no nibble has to be moved.

A group is 16 bytes: the low nibble of byte i is weight i, the high one weight 16 + i. As many groups go together as
two vectors hold (four with 512-bit vectors, else two); `by_halves` lays activations out to match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernels.cpu.bit_fields import shifted
from kernels.cpu.vector_ir import I8, I32, I64, Emitter, vec


def groups_together(e: Emitter) -> int:
    return 2 * e.groups_at_once


def by_halves(e: Emitter, n_cols: Any, record: Any) -> Any:
    """Address of a copy of the int8 at `record`, of whole 256s alone: of `groups_together` groups the first 16 of
    each, then the second 16 of each. The copy is on the stack of the function; it costs a part of one row's dot, and
    saves each row its shuffles.
    """
    b, n = e.b, groups_together(e)
    with b.goto_entry_block():
        room = b.alloca(I8, n_cols)
        room.align = 64  # else three of four 512-bit loads straddle cache lines
        place = b.ptrtoint(room, I64)

    def copy(i: Any, _: list[Any]) -> list[Any]:
        at = b.mul(i, e.i64(32 * n))
        first, second = (e.load(e.at(b.add(record, at), 16 * n * k), vec(I8, 16 * n)) for k in (0, 1))
        for half in (0, 1):
            lanes = [32 * k + 16 * half + j for k in range(n) for j in range(16)]
            e.store(e.shuffle(first, lanes, second), e.at(b.add(place, at), 16 * n * half))
        return []

    e.loop_or_skip(b.mul(b.lshr(n_cols, e.i64(8)), e.i64(8 // n)), [], copy)
    return place


def dot_of_halves(e: Emitter, packed: Any, x: Any, table: Sequence[int] | None, signed: bool) -> Any:
    """int32 lanes, 4 a group: 4-sums of a group's first half plus those of its second. Codes are the nibbles of
    `packed`, or what `table` says for each; activations are at `x`, by halves."""
    found = e.zero(vec(I32, packed.type.count // 4))
    for half in (0, 1):
        codes = shifted(e, packed, 4 * half, 15)
        activations = e.load(e.at(x, packed.type.count * half), packed.type)
        found = e.dot(found, codes if table is None else e.lookup(table, codes), activations, signed)
    return found
