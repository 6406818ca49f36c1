"""Measure how fast experts can be copied to a GPU, before there are any."""

from __future__ import annotations

import time

from pearl_cli.device.build import DeviceSide
from pearl_cli.residency.arena import map_region

_BYTES = 8 << 20
_RUNS = 3


def link_bytes_per_s(side: DeviceSide) -> float:
    """From page-locked memory, the fastest of a few copies into slots, which must be empty."""
    memory = map_region(min(_BYTES, side.arena.memory.n_bytes))
    side.calls.pin(memory)
    times = []
    try:
        for _ in range(_RUNS):
            started = time.perf_counter()
            side.calls.copy_in(side.copies.stream, side.arena.memory, 0, memory)
            side.copies.synchronize(side.copies.mark())
            times.append(time.perf_counter() - started)
    finally:
        side.calls.unpin(memory)
    return memory.nbytes / min(times)
