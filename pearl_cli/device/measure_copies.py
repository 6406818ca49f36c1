"""Measure how fast experts can be copied to a GPU, before there are any."""

from __future__ import annotations

from pearl_cli.device.device_side import DeviceSide
from pearl_cli.device.fastest import fastest
from pearl_cli.residency.arena import map_region

_BYTES = 8 << 20


def link_bytes_per_s(side: DeviceSide) -> float:
    """From page-locked memory, the fastest of a few copies into slots, which must be empty."""
    memory = map_region(min(_BYTES, side.arena.memory.n_bytes))
    side.calls.pin(memory)

    def copy() -> None:
        side.calls.copy_in(side.copies.stream, side.arena.memory, 0, memory)
        side.copies.synchronize(side.copies.mark())

    try:
        return memory.nbytes / fastest(copy)
    finally:
        side.calls.unpin(memory)
