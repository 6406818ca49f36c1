"""Evict the least recently used expert."""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.history import LayerHistory


class LRU:
    name = "lru"

    def keys(self, layer: int, history: LayerHistory, forecast: np.ndarray | None) -> np.ndarray:
        return history.last_use
