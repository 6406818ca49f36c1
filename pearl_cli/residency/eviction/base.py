"""The shape of an eviction policy: a key per expert, the smallest key leaves first, ties fall to the smaller id."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pearl_cli.residency.history import LayerHistory


class EvictionPolicy(Protocol):
    name: str

    def keys(self, layer: int, history: LayerHistory, forecast: np.ndarray | None) -> np.ndarray:
        """[E] numbers, smallest evicted first. `forecast`: expected number of events until the next use, float64 [E],
        for the policies that look ahead; None when nothing is forecast. Must not change the history."""
        ...


def choose_victims(keys: np.ndarray, candidates: np.ndarray, count: int) -> np.ndarray:
    """The `count` of `candidates` (ascending expert ids) with the smallest keys; equal keys: the smaller id."""
    if count <= 0:
        return candidates[:0]
    if count == 1:
        return candidates[[np.argmin(keys[candidates])]]
    return candidates[np.argsort(keys[candidates], kind="stable")[:count]]
