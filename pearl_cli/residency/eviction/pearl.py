"""Evict the largest expected next use over reload cost: PEARL's rule. With experts of one size in one tier that is the
expert needed again furthest in the future, as far as the forecast knows.
"""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.history import LayerHistory


class Pearl:
    name = "pearl"

    def __init__(self, reload_cost: np.ndarray | None = None) -> None:
        """reload_cost: [L, E], bytes or seconds; only ratios within a layer matter. None: all alike."""
        self._reload_cost = reload_cost

    def keys(self, layer: int, history: LayerHistory, forecast: np.ndarray | None) -> np.ndarray:
        if forecast is None:
            raise ValueError("pearl eviction needs a forecast of next uses")
        keys: np.ndarray = -forecast if self._reload_cost is None else -forecast / self._reload_cost[layer]
        return keys
