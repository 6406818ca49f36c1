"""How long a piece of work takes when nothing disturbs it."""

from __future__ import annotations

import time
from collections.abc import Callable

_RUNS = 3


def fastest(work: Callable[[], None]) -> float:
    """Seconds of the fastest of a few runs."""
    times = []
    for _ in range(_RUNS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
