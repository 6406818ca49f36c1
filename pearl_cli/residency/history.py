"""What one layer's experts were used for so far: the record that eviction policies read.

Not a cache: it knows nothing of who is resident.
"""

from __future__ import annotations

import numpy as np


class LayerHistory:
    """last_use int64 [E] (event index, -1 never), use_count int64 [E] (survives eviction), touched_cycle int64 [E]
    (forward call of the last touch, demand or prefetch), clock (index of the newest event, from 1), cycle (index of the
    running forward call).
    """

    __slots__ = ("clock", "cycle", "last_use", "touched_cycle", "use_count")

    def __init__(self, num_experts: int) -> None:
        self.last_use = np.full(num_experts, -1, np.int64)
        self.use_count = np.zeros(num_experts, np.int64)
        self.touched_cycle = np.full(num_experts, -1, np.int64)
        self.clock = 0
        self.cycle = 0

    def record(self, expert_ids: np.ndarray) -> None:
        """One event: the distinct experts one token selected. All members get the same clock."""
        self.clock += 1
        self.last_use[expert_ids] = self.clock
        self.use_count[expert_ids] += 1
        self.touched_cycle[expert_ids] = self.cycle
