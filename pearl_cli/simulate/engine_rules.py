"""Replay a trace by the runtime's own rules: per-layer slots, one event a token and layer, all of a token's experts
recorded with one clock.

Uses the very class that decides residency in the runtime, so that the two can be compared number by number.
"""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.eviction.base import EvictionPolicy
from pearl_cli.simulate.belady import NextUse
from pearl_cli.simulate.pool import ReplayResult
from pearl_cli.trace import RouteTrace


class Clairvoyant:
    """Belady's rule with forced admission as a policy: the furthest next use leaves first.

    `forecast` is the true next use.
    """

    name = "belady"

    def keys(self, layer: int, history: object, forecast: np.ndarray | None) -> np.ndarray:
        if forecast is None:
            raise ValueError("belady needs the future; it exists in replay only")
        return -forecast


def replay_engine(trace: RouteTrace, slots: list[int], policy: EvictionPolicy | None) -> ReplayResult:
    """Hits and bytes with `slots[layer]` slots; None is Belady's rule with forced admission."""
    events = list(trace.events(token_by_token=True))
    rule = policy or Clairvoyant()
    caches = [LayerCache(layer, trace.num_experts, slots[layer], rule) for layer in range(trace.num_layers)]
    per_layer: list[list[np.ndarray]] = [[] for _ in caches]
    for event in events:
        per_layer[event.layer].append(event.expert_ids)
    futures = [NextUse(ids, trace.num_experts) for ids in per_layer] if policy is None else None
    position = [0] * len(caches)
    result = ReplayResult()
    for event in events:
        cache = caches[event.layer]
        ids = event.expert_ids
        hits = int(cache.resident[ids].sum())
        result.count(event.phase, hits, ids.size - hits, int(trace.expert_bytes[event.layer]))
        forecast = None
        if futures is not None:
            futures[event.layer].advance(position[event.layer], ids)
            position[event.layer] += 1
            forecast = futures[event.layer].after
        cache.event(ids, forecast)
    return result


def replay_bypass(trace: RouteTrace, slots: list[int]) -> ReplayResult:
    """The true optimum: of the kept experts and the event's, those with the nearest next use stay, so that an expert
    may pass through.
    """
    events = list(trace.events(token_by_token=True))
    per_layer: list[list[np.ndarray]] = [[] for _ in range(trace.num_layers)]
    for event in events:
        per_layer[event.layer].append(event.expert_ids)
    futures = [NextUse(ids, trace.num_experts) for ids in per_layer]
    resident = np.zeros((trace.num_layers, trace.num_experts), bool)
    position = [0] * trace.num_layers
    result = ReplayResult()
    for event in events:
        layer, ids = event.layer, event.expert_ids
        kept = resident[layer]
        hits = int(kept[ids].sum())
        result.count(event.phase, hits, ids.size - hits, int(trace.expert_bytes[layer]))
        futures[layer].advance(position[layer], ids)
        position[layer] += 1
        kept[ids] = True
        candidates = np.flatnonzero(kept)
        excess = candidates.size - slots[layer]
        if excess > 0:
            kept[candidates[np.argsort(-futures[layer].after[candidates], kind="stable")[:excess]]] = False
    return result
