"""`LogicalCache`: which experts cache-aware routing takes to be in fast memory, a pure function of tokens and weights.

It imports nothing that moves bytes, and no method takes a time, a slot or the state of a copy, so timing cannot reach
it. Physical slots follow it: where its capacities are those of the slots, its layers are also the copy engine's record
of what to keep, else the two live side by side.

A forward call that is not continued (cancelled, failed, or cut off the sequence) is taken back as a whole when the next
one begins: cancelling in the middle of a token must leave no half of it. A forecaster cannot be wound back; it then
starts without memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pearl_cli.predict.base import NextUse
from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.eviction.base import EvictionPolicy
from pearl_cli.routing.running_range import RunningRange
from pearl_cli.routing.steering import DEFAULTS, RECENT, Steering


class LogicalCache:
    """layers[l]: None for a layer without experts; ranges: of the selection scores; ahead bool [L, E]: inserted and not
    chosen since; evict: name of the eviction policy; needs_inputs: `use` reads x.
    """

    def __init__(
        self,
        capacities: Sequence[int | None],
        num_experts: int,
        make_policy: Callable[[], EvictionPolicy],
        next_use: NextUse | None = None,
        steering: Steering = DEFAULTS,
    ) -> None:
        """capacities: experts a layer, None for one without experts. make_policy: a fresh policy, for the start and
        every reset. steering: for recency, refresh and smoothing.
        """
        # Imported here: numba takes half a second to load, and this module is read for its names too.
        from pearl_cli.residency.compiled_cache import CompiledLayerCache

        self.needs_inputs = next_use is not None
        self.ranges = RunningRange(len(capacities), steering.smoothing)
        self._make_policy = make_policy
        self._next_use = next_use
        self._steering = steering
        self._expected: dict[int, np.ndarray] = {}
        policy = make_policy()
        self.evict = policy.name
        self.layers: list[LayerCache | None] = [
            CompiledLayerCache(layer, num_experts, capacity, policy) if capacity is not None else None
            for layer, capacity in enumerate(capacities)
        ]
        shape = (len(capacities), num_experts)
        self._arrays = (
            np.zeros(shape, bool), np.full(shape, -1, np.int64), np.zeros(shape, np.int64),
            np.full(shape, -1, np.int64), self.ranges.value, np.zeros(shape, bool),
        )  # fmt: skip
        for layer, capacity in enumerate(capacities):
            self._arrays[0][layer] = capacity is not None and capacity >= num_experts  # a cache of everything is full
        self.ahead = self._arrays[5]
        self._start = [array.copy() for array in self._arrays]
        for cache in self._caches():
            self._share(cache)
            cache.logical = True
        self._before = self._snapshot()
        self._next_start = 0

    def layer(self, layer: int) -> LayerCache:
        """Raises ValueError for a layer without experts."""
        cache = self.layers[layer]
        if cache is None:
            raise ValueError(f"layer {layer} has no experts")
        return cache

    def serves(self, slot_capacities: Sequence[int | None]) -> bool:
        """Whether one record can say both what routing goes by and what slots of these capacities keep: they agree,
        and the slots do not hold everything anyway.
        """
        mine = [(cache.capacity, cache.resident.size) if cache is not None else None for cache in self.layers]
        agree = all(
            (own is None) == (slots is None) and (own is None or own[0] == slots)
            for own, slots in zip(mine, slot_capacities, strict=True)
        )
        return agree and any(own is not None and own[0] < own[1] for own in mine)

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        """A forward call over `token_ids` from context position `start` begins."""
        if start != self._next_start:
            self._take_back()
        self._before = self._snapshot()
        self._next_start = start + len(token_ids)
        for cache in self._caches():
            cache.history.cycle += 1
        if self._next_use is not None:
            self._next_use.begin(token_ids, start, phase)

    def use(self, layer: int, topk_ids: np.ndarray, x: np.ndarray | None = None) -> None:
        """The events of one layer and call: topk_ids [T, K], tokens in order; x float32 [T, D], the router's input,
        where `needs_inputs`.
        """
        cache, expected = self.layer(layer), None
        if self._next_use is not None:
            if x is None:
                raise ValueError("eviction by a forecast needs the router's input")
            expected = self._next_use.expected(layer, x, topk_ids)
            self._expected[layer] = expected[-1]
        for token, row in enumerate(topk_ids):
            cache.event(row, expected[token] if expected is not None else None)
        self.ahead[layer, topk_ids] = False

    def insert(self, layer: int, likely: np.ndarray, at_most: int) -> tuple[np.ndarray, np.ndarray]:
        """Make the first `at_most` experts of `likely` that are not resident so ahead of a use: (they, what left for
        them). Before a layer's first event every forecast is alike.
        """
        cache, expected = self.layer(layer), self._expected.get(layer)
        present = cache.resident[likely]
        if self._steering.refresh:
            cache.history.last_use[likely[present]] = cache.history.clock
            cache.history.touched_cycle[likely[present]] = cache.history.cycle
        new = likely[~present][: min(at_most, cache.capacity)]
        if not new.size:
            return new, new
        if expected is None and self._next_use is not None:
            expected = np.zeros(cache.resident.size)
        evicted = cache.insert(new, expected, self._steering.recency == RECENT)
        self.ahead[layer, new] = True
        return new, evicted

    def reset(self) -> None:
        """As at the start: nobody resident, no use seen. The layers stay the same objects."""
        policy = self._make_policy()
        for cache in self._caches():
            cache.policy = policy
        self._restore((self._start, [0] * len(self.layers), [0] * len(self.layers)))
        self._forget_forecasts()
        self._before = self._snapshot()
        self._next_start = 0

    def _caches(self) -> list[LayerCache]:
        return [cache for cache in self.layers if cache is not None]

    def _share(self, cache: LayerCache) -> None:
        """Let the layer's arrays be rows of the whole cache's, so that taking a call back copies few arrays."""
        resident, last_use, use_count, touched, *_ = self._arrays
        history, layer = cache.history, cache.layer
        cache.resident = resident[layer]
        history.last_use, history.use_count, history.touched_cycle = last_use[layer], use_count[layer], touched[layer]

    def _snapshot(self) -> tuple[list[np.ndarray], list[int], list[int]]:
        clocks = [cache.history.clock if cache is not None else 0 for cache in self.layers]
        cycles = [cache.history.cycle if cache is not None else 0 for cache in self.layers]
        return [array.copy() for array in self._arrays], clocks, cycles

    def _restore(self, snapshot: tuple[list[np.ndarray], list[int], list[int]]) -> None:
        arrays, clocks, cycles = snapshot
        for mine, saved in zip(self._arrays, arrays, strict=True):
            mine[...] = saved
        for cache in self._caches():
            cache.history.clock, cache.history.cycle = clocks[cache.layer], cycles[cache.layer]

    def _take_back(self) -> None:
        self._restore(self._before)
        self._forget_forecasts()

    def _forget_forecasts(self) -> None:
        self._expected.clear()
        if self._next_use is not None:
            self._next_use = self._next_use.fresh()
