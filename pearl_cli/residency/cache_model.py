"""Which experts of one layer the budget keeps, as a pure function of the routing: the rules that engine and simulator
share.

Holds no bytes, and nothing of slots is kept here, so the copy engine's timing can never reach it.
Rules: a token's top-k of one layer is ONE event; members are recorded with one clock, all are admitted, then the layer
evicts down to its capacity, old residents first, members of the event only where the event alone exceeds the capacity.
"""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.eviction.base import EvictionPolicy, choose_victims
from pearl_cli.residency.history import LayerHistory


class LayerCache:
    """resident: bool [E], the kept experts; capacity: how many at most; logical: routing goes by it, so that nobody may
    take a member out because its bytes are missing.
    """

    __slots__ = ("capacity", "history", "layer", "logical", "policy", "resident")

    def __init__(self, layer: int, num_experts: int, capacity: int, policy: EvictionPolicy) -> None:
        if capacity < 0:
            raise ValueError(f"layer {layer}: capacity {capacity} is negative")
        self.layer = layer
        self.capacity = min(capacity, num_experts)
        self.policy = policy
        self.history = LayerHistory(num_experts)
        self.resident = np.zeros(num_experts, bool)
        self.logical = False

    def event(self, expert_ids: np.ndarray, forecast: np.ndarray | None = None) -> np.ndarray:
        """Apply one event (distinct ids, any order) and return the evicted ids. Mutates history and residents."""
        self.history.record(expert_ids)
        return self.keep(expert_ids, forecast)

    def keep(self, expert_ids: np.ndarray, forecast: np.ndarray | None = None) -> np.ndarray:
        """As `event`, where the history has it already."""
        resident = self.resident
        if resident[expert_ids].all():
            return expert_ids[:0]
        old = resident.copy()
        old[expert_ids] = False
        resident[expert_ids] = True
        excess = int(np.count_nonzero(resident)) - self.capacity
        if excess <= 0:
            return expert_ids[:0]
        keys = self.policy.keys(self.layer, self.history, forecast)
        candidates = np.flatnonzero(old)
        victims = choose_victims(keys, candidates, min(excess, candidates.size))
        if victims.size < excess:
            members = np.sort(expert_ids)
            victims = np.concatenate([victims, choose_victims(keys, members, excess - victims.size)])
        resident[victims] = False
        return victims

    def strangers(self, slot_of: np.ndarray, expert_ids: np.ndarray) -> np.ndarray:
        """Experts, ascending, that hold a slot (slot_of [E] not negative) and are not kept, less those of expert_ids.
        """
        held = (slot_of >= 0) > self.resident
        held[expert_ids] = False
        return np.flatnonzero(held)

    def insert(
        self, expert_ids: np.ndarray, forecast: np.ndarray | None = None, as_recent: bool = True
    ) -> np.ndarray:
        """Make experts that are not resident (distinct, at most the capacity) so ahead of a use and return the evicted
        ids: old residents only. No event; `as_recent` gives them the newest event's clock, else their own last use
        stands.
        """
        old = np.flatnonzero(self.resident)
        self.resident[expert_ids] = True
        self.history.touched_cycle[expert_ids] = self.history.cycle
        if as_recent:
            self.history.last_use[expert_ids] = self.history.clock
        excess = old.size + expert_ids.size - self.capacity
        if excess <= 0:
            return old[:0]
        victims = choose_victims(self.policy.keys(self.layer, self.history, forecast), old, excess)
        self.resident[victims] = False
        return victims

    def resize(self, capacity: int, forecast: np.ndarray | None = None) -> np.ndarray:
        """Hold at most `capacity` from now on; returns those that leave for it."""
        self.capacity = capacity
        kept = np.flatnonzero(self.resident)
        if kept.size <= capacity:
            return kept[:0]
        victims = choose_victims(self.policy.keys(self.layer, self.history, forecast), kept, kept.size - capacity)
        self.resident[victims] = False
        return victims

    def ghost(self, policy: EvictionPolicy) -> LayerCache:
        """A second cache over the same history that begins with the same residents: what another policy would keep.
        Tell it of an event by `keep`, after this one was told by `event`.
        """
        ghost = LayerCache(self.layer, self.resident.size, self.capacity, policy)
        ghost.history = self.history
        ghost.resident[:] = self.resident
        return ghost

    def admit(self, expert: int) -> None:
        """Make one expert resident without a use (warm start). Raises ValueError when the layer is full."""
        if not self.resident[expert] and np.count_nonzero(self.resident) >= self.capacity:
            raise ValueError(f"layer {self.layer} already holds {self.capacity} experts")
        self.resident[expert] = True
