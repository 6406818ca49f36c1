"""Measure, on an open engine, how fast experts are read and how long a layer computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from kernels.cpu.memory import allocate
from pearl_cli.engine import Engine
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.transfer import ReadFunction
from pearl_cli.routing.auto_inserts import LinkSpeed

_EXPERTS_READ = 12
_STEPS = 6
_WARM_STEPS = 2


def measure_link(
    engine: Engine,
    layers: Sequence[LayerState | None],
    read: ReadFunction,
    stall_ms: Callable[[], float],
    known_bytes_per_s: float | None = None,
) -> LinkSpeed:
    """Reads some experts into memory of its own, unless the speed of that is known, and decodes some tokens; the
    sequence of `engine` is empty afterwards. stall_ms: what the last forward call waited. Raises the errors of reading.
    """
    states = [state for state in layers if state is not None]
    expert_bytes = max(max(state.expert_bytes) for state in states)
    rate = _read_rate(states, read) if known_bytes_per_s is None else known_bytes_per_s
    return LinkSpeed(rate, _step_s(engine, stall_ms) / len(states), expert_bytes)


def _read_rate(states: Sequence[LayerState], read: ReadFunction) -> float:
    """Bytes a second over experts spread over layers and ids."""
    buffer = allocate(max(place.read_bytes for s in states for triple in s.places for place in triple)).data
    n_bytes, started = 0, time.perf_counter()
    for index in range(_EXPERTS_READ):
        state = states[index * len(states) // _EXPERTS_READ]
        for place in state.places[(7 * index) % state.num_experts]:
            read(place.file_index, place.file_offset, buffer[: place.read_bytes], place.needed_bytes)
            n_bytes += place.n_bytes
    return n_bytes / (time.perf_counter() - started)


def _step_s(engine: Engine, stall_ms: Callable[[], float]) -> float:
    """Median time of a decode step without its waits."""
    token_ids = np.random.default_rng(0).integers(0, engine.model.config.vocab_size, _STEPS + 1).tolist()
    engine.reset()
    engine.prefill(token_ids[:1])
    times = []
    for token_id in token_ids[1:]:
        started = time.perf_counter()
        engine.decode_step(token_id)
        times.append(time.perf_counter() - started - stall_ms() / 1e3)
    engine.reset()
    return float(np.median(times[_WARM_STEPS:]))
