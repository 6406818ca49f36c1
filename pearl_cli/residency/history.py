"""What one layer's experts were used for so far: the record that eviction policies read.

Not a cache: it knows nothing of who is resident.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MAX_NOTED = 256


class LayerHistory:
    """last_use int64 [E] (event index, -1 never), use_count int64 [E] (survives eviction), touched_cycle int64 [E]
    (forward call of the last touch, demand or prefetch), clock (index of the newest event, from 1), cycle (index of the
    running forward call). Reading one of the arrays enters what `note` has left open.
    """

    __slots__ = ("_last_use", "_noted", "_touched_cycle", "_use_count", "clock", "cycle")

    def __init__(self, num_experts: int) -> None:
        self._last_use = np.full(num_experts, -1, np.int64)
        self._use_count = np.zeros(num_experts, np.int64)
        self._touched_cycle = np.full(num_experts, -1, np.int64)
        self._noted: list[tuple[np.ndarray, int, int]] = []
        self.clock = 0
        self.cycle = 0

    def record(self, expert_ids: np.ndarray) -> None:
        """One event: the distinct experts one token selected. All members get the same clock."""
        if self._noted:
            self._enter_noted()
        self.clock += 1
        self._last_use[expert_ids] = self.clock
        self._use_count[expert_ids] += 1
        self._touched_cycle[expert_ids] = self.cycle

    def note(self, expert_ids: np.ndarray) -> None:
        """As `record`, but entered only when somebody reads: for a layer of which nothing can leave. `expert_ids` must
        not change afterwards.
        """
        self.clock += 1
        self._noted.append((expert_ids, self.clock, self.cycle))
        if len(self._noted) >= _MAX_NOTED:
            self._enter_noted()

    def _enter_noted(self) -> None:
        events, clocks, cycles = zip(*self._noted, strict=True)
        expert_ids, sizes = np.concatenate(events), [event.size for event in events]
        # of an expert that occurs twice the later assignment stays
        self._last_use[expert_ids] = np.repeat(clocks, sizes)
        self._touched_cycle[expert_ids] = np.repeat(cycles, sizes)
        np.add.at(self._use_count, expert_ids, 1)
        self._noted.clear()

    @property
    def last_use(self) -> NDArray[np.int64]:
        if self._noted:
            self._enter_noted()
        return self._last_use

    @last_use.setter
    def last_use(self, array: NDArray[np.int64]) -> None:
        self._last_use = array

    @property
    def use_count(self) -> NDArray[np.int64]:
        if self._noted:
            self._enter_noted()
        return self._use_count

    @use_count.setter
    def use_count(self, array: NDArray[np.int64]) -> None:
        self._use_count = array

    @property
    def touched_cycle(self) -> NDArray[np.int64]:
        if self._noted:
            self._enter_noted()
        return self._touched_cycle

    @touched_cycle.setter
    def touched_cycle(self, array: NDArray[np.int64]) -> None:
        self._touched_cycle = array
