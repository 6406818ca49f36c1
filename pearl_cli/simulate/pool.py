"""Replay a trace against pools of bytes by the rules of the published curves.

One event is one layer of one pass; the whole prefill is one pass. Within an event each distinct expert is looked up
once, in token order, and every occurrence makes it more recent; a miss makes it resident at once; eviction follows
the event and never takes what the event touched.
The budget is one pool over all layers ("global") or split evenly over them ("layer"). The runtime's own per-layer
rules are in `pearl_cli.residency.cache_model`; `replay_engine` runs those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pearl_cli.residency.eviction.base import EvictionPolicy
from pearl_cli.residency.history import LayerHistory
from pearl_cli.simulate.belady import NextUse
from pearl_cli.trace import DECODE, Event, RouteTrace

Watch = Callable[[Event, np.ndarray, np.ndarray], None]
"""(event, missing ids, resident bool [E] as a live view): told of every event before it changes what is resident."""


@dataclass(slots=True)
class ReplayResult:
    """Lookups are distinct experts of an event; misses_per_event int64 [events] in order, for the cost model."""

    hits: int = 0
    lookups: int = 0
    hits_decode: int = 0
    lookups_decode: int = 0
    read_bytes: int = 0
    read_bytes_decode: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0

    @property
    def hit_rate_decode(self) -> float:
        return self.hits_decode / self.lookups_decode if self.lookups_decode else 0.0

    def count(self, phase: int, hits: int, misses: int, expert_bytes: int) -> None:
        self.hits += hits
        self.lookups += hits + misses
        self.read_bytes += misses * expert_bytes
        if phase == DECODE:
            self.hits_decode += hits
            self.lookups_decode += hits + misses
            self.read_bytes_decode += misses * expert_bytes


class _Pool:
    """One budget of bytes over `sizes.size` experts."""

    def __init__(self, budget_bytes: float, sizes: np.ndarray) -> None:
        self.budget_bytes = budget_bytes
        self.sizes = sizes
        self.resident = np.zeros(sizes.size, bool)
        self.used_bytes = 0
        self.history = LayerHistory(sizes.size)

    def touch(self, ids: np.ndarray) -> int:
        """Look up the ids of one event, in order; returns hits. Repeats only promote."""
        distinct = np.unique(ids)
        hits = int(self.resident[distinct].sum())
        history = self.history
        history.last_use[ids] = (
            history.clock + 1 + np.arange(ids.size)
        )  # numpy assigns in order: the last occurrence stays
        history.clock += ids.size
        history.use_count[distinct] += 1
        history.touched_cycle[distinct] = history.cycle
        self.used_bytes += int(self.sizes[distinct[~self.resident[distinct]]].sum())
        self.resident[distinct] = True
        return hits

    def evict(self, keys: np.ndarray, touched: np.ndarray) -> None:
        """Evict the smallest keys until the budget holds, sparing `touched`."""
        candidates = self.resident.copy()
        candidates[touched] = False
        ids = np.flatnonzero(candidates)
        for expert in ids[np.argsort(keys[ids], kind="stable")]:
            if self.used_bytes <= self.budget_bytes:
                return
            self.resident[expert] = False
            self.used_bytes -= int(self.sizes[expert])


def replay_pool(
    trace: RouteTrace, budget_bytes: int, policy: EvictionPolicy | None, per_layer: bool, watch: Watch | None = None
) -> ReplayResult:
    """Hits and bytes of `trace` under `policy`; None is Belady's rule (furthest next use, from the trace itself)."""
    events = list(trace.events())
    n_experts = trace.num_experts
    sizes = np.repeat(trace.expert_bytes, n_experts)
    if per_layer:
        share = budget_bytes / trace.num_layers
        pools = [_Pool(share, sizes[layer * n_experts : (layer + 1) * n_experts]) for layer in range(trace.num_layers)]
    else:
        pools = [_Pool(budget_bytes, sizes)]
    next_use = NextUse(_global_ids(events, n_experts), trace.num_layers * n_experts) if policy is None else None
    result = ReplayResult()
    for index, event in enumerate(events):
        offset = 0 if per_layer else event.layer * n_experts
        pool = pools[event.layer if per_layer else 0]
        pool.history.cycle = index
        ids = event.expert_ids + offset
        if watch is not None:
            here = pool.resident[offset : offset + n_experts]
            watch(event, np.unique(event.expert_ids[~here[event.expert_ids]]), here)
        hits = pool.touch(ids)
        distinct = np.unique(event.expert_ids).size
        result.count(event.phase, hits, distinct - hits, int(trace.expert_bytes[event.layer]))
        if next_use is not None:
            next_use.advance(index, event.expert_ids + event.layer * n_experts)
        if pool.used_bytes > pool.budget_bytes:
            if next_use is not None:
                first = event.layer * n_experts if per_layer else 0
                keys = -next_use.after[first : first + pool.sizes.size]
            else:
                assert policy is not None
                keys = policy.keys(event.layer if per_layer else 0, pool.history, None)
            pool.evict(keys, ids)
    return result


def _global_ids(events: Iterable[Event], n_experts: int) -> list[np.ndarray]:
    return [event.expert_ids + event.layer * n_experts for event in events]
