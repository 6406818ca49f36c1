"""Replay a trace by the runtime's own rules: per-layer slots, one event a token and layer, all of a token's experts
recorded with one clock.

Uses the very class that decides residency in the runtime, so that the two can be compared number by number.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pearl_cli.predict.base import NextUse
from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.eviction.base import EvictionPolicy
from pearl_cli.simulate.belady import NextUse as TrueNextUse
from pearl_cli.simulate.pool import ReplayResult, Watch
from pearl_cli.trace import Event, RouteTrace

RouterInput = Callable[[Event], np.ndarray]
"""What the event's router saw, float32 [1, D]."""


class Clairvoyant:
    """Belady's rule with forced admission as a policy: the furthest next use leaves first.

    `forecast` is the true next use.
    """

    name = "belady"

    def keys(self, layer: int, history: object, forecast: np.ndarray | None) -> np.ndarray:
        if forecast is None:
            raise ValueError("belady needs the future; it exists in replay only")
        return -forecast


def replay_engine(
    trace: RouteTrace,
    slots: list[int],
    policy: EvictionPolicy | None,
    next_use: NextUse | None = None,
    router_input: RouterInput | None = None,
    watch: Watch | None = None,
) -> ReplayResult:
    """Hits and bytes with `slots[layer]` slots; policy None is Belady's rule with forced admission.

    next_use: what a policy that looks ahead goes by, fresh; router_input: needed by one that reads router inputs.
    """
    rule = policy or Clairvoyant()
    caches = [LayerCache(layer, trace.num_experts, slots[layer], rule) for layer in range(trace.num_layers)]
    future = _Future(trace) if policy is None else None
    seen: tuple[int, int] | None = None
    result = ReplayResult()
    for event in trace.events(token_by_token=True):
        cache, ids = caches[event.layer], event.expert_ids
        missing = ids[~cache.resident[ids]]
        result.count(event.phase, ids.size - missing.size, missing.size, int(trace.expert_bytes[event.layer]))
        if watch is not None:
            watch(event, missing, cache.resident)
        forecast = None
        if future is not None:
            forecast = future.after(event)
        elif next_use is not None:
            if seen != (event.turn, event.step):
                seen = (event.turn, event.step)
                next_use.begin(np.zeros(1, np.int64), event.step, "decode")
            x = router_input(event) if router_input is not None else np.zeros((1, 0), np.float32)
            forecast = next_use.expected(event.layer, x, ids[None])[0]
        cache.event(ids, forecast)
    return result


class _Future:
    """True next uses, layer by layer, as events are worked off."""

    def __init__(self, trace: RouteTrace) -> None:
        per_layer: list[list[np.ndarray]] = [[] for _ in range(trace.num_layers)]
        for event in trace.events(token_by_token=True):
            per_layer[event.layer].append(event.expert_ids)
        self._layers = [TrueNextUse(ids, trace.num_experts) for ids in per_layer]
        self._position = [0] * trace.num_layers

    def after(self, event: Event) -> np.ndarray:
        """int64 [E] once `event` has happened; a view that the next call changes."""
        layer = event.layer
        self._layers[layer].advance(self._position[layer], event.expert_ids)
        self._position[layer] += 1
        return self._layers[layer].after


def replay_bypass(trace: RouteTrace, slots: list[int], watch: Watch | None = None) -> ReplayResult:
    """The true optimum: of the kept experts and the event's, those with the nearest next use stay, so that an expert
    may pass through.
    """
    future = _Future(trace)
    resident = np.zeros((trace.num_layers, trace.num_experts), bool)
    result = ReplayResult()
    for event in trace.events(token_by_token=True):
        layer, ids = event.layer, event.expert_ids
        kept = resident[layer]
        missing = ids[~kept[ids]]
        result.count(event.phase, ids.size - missing.size, missing.size, int(trace.expert_bytes[layer]))
        if watch is not None:
            watch(event, missing, kept)
        after = future.after(event)
        kept[ids] = True
        candidates = np.flatnonzero(kept)
        excess = candidates.size - slots[layer]
        if excess > 0:
            kept[candidates[np.argsort(-after[candidates], kind="stable")[:excess]]] = False
    return result
