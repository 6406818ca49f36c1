"""Least-Stale (SpecMD, arXiv 2602.03921): what the running forward call has not touched leaves first, by last use.

Within one layer and without prefetching this is LRU; with it, experts fetched for this very call are the last to go.
"""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.history import LayerHistory

_FRESH = np.int64(1) << 62


class LeastStale:
    name = "least-stale"

    def keys(self, layer: int, history: LayerHistory, forecast: np.ndarray | None) -> np.ndarray:
        keys: np.ndarray = history.last_use + _FRESH * (history.touched_cycle == history.cycle)
        return keys
