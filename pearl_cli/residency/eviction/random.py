"""Evict at random: the floor under every other policy. One seed gives one sequence of victims."""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.history import LayerHistory


class Random:
    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def keys(self, layer: int, history: LayerHistory, forecast: np.ndarray | None) -> np.ndarray:
        return self._rng.random(history.last_use.size)
