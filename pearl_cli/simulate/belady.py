"""The future of a trace: when each expert is used next. Only a replay can know it; it bounds every eviction policy."""

from __future__ import annotations

import numpy as np

NEVER = np.int64(1) << 60


class NextUse:
    """after: int64 [N], the index of the next event that uses each expert, strictly after the events advanced so
    far; NEVER if none.
    """

    def __init__(self, events: list[np.ndarray], num_ids: int) -> None:
        """events: ids used by each event, in order; ids below `num_ids`."""
        self.after = np.full(num_ids, NEVER, np.int64)
        self._following: list[np.ndarray] = [np.empty(0, np.int64)] * len(events)
        upcoming = np.full(num_ids, NEVER, np.int64)
        for index in range(len(events) - 1, -1, -1):
            ids = events[index]
            self._following[index] = upcoming[ids]
            upcoming[ids] = index
        self.after[:] = upcoming

    def advance(self, index: int, ids: np.ndarray) -> None:
        """Event `index` has happened: its ids are next used when they are used again. Mutates `after`."""
        self.after[ids] = self._following[index]
