"""Evict the smallest use_count / (age + 1): frequency that fades with age (the rule of shijiuzhang/moe-cache-eval)."""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.history import LayerHistory


class LFRU:
    name = "lfru"

    def keys(self, layer: int, history: LayerHistory, forecast: np.ndarray | None) -> np.ndarray:
        return history.use_count / (history.clock - history.last_use + 1)
