"""Tiles of 16 cache positions, one a lane, and the scales of their q8_0 blocks, as vector IR."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels.cpu.vector_ir import F16, F32, Emitter, vec

TILE = 16


def tiles(e: Emitter, n_positions: Any, stride: Any) -> tuple[Any, Callable[[Any], Any], Any]:
    """(number of tiles, first position of a tile, stride of its rows): nothing beyond n_positions rows is read.

    The last of several tiles overlaps the one before. Fewer than TILE positions are as many tiles, each of TILE times
    one row: whoever stores lane j of tile t at place t + j ends with the right one in each.
    """
    b, few = e.b, e.b.icmp_signed("<", n_positions, e.i64(TILE))
    last = b.sub(n_positions, e.i64(TILE))

    def first_of(t: Any) -> Any:
        first = b.mul(t, e.i64(TILE))
        return b.select(few, t, b.select(b.icmp_signed("<", first, last), first, last))

    n_whole = b.udiv(b.add(n_positions, e.i64(TILE - 1)), e.i64(TILE))
    return b.select(few, n_positions, n_whole), first_of, b.select(few, e.i64(0), stride)


def half_scales(e: Emitter, blocks: list[Any]) -> Any:
    """The float16 at each address, as float32 lanes."""
    packed = e.zero(vec(F16, len(blocks)))
    for j, block in enumerate(blocks):
        packed = e.b.insert_element(packed, e.load(block, F16, 1), e.i32(j))
    return e.b.fpext(packed, vec(F32, len(blocks)))
