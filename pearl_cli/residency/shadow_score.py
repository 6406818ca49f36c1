"""Forecasts scored while nothing is fetched: what would have been asked for against what each gate then missed."""

from __future__ import annotations

import numpy as np


class ShadowScore:
    """right: experts that would have been fetched and were missed; wrong: that would have been and were not chosen;
    seconds: what forecasting took.
    """

    def __init__(self) -> None:
        self.right = 0
        self.wrong = 0
        self.seconds = 0.0
        self._expected: dict[int, list[int]] = {}

    def expect(self, layer: int, expert_ids: list[int]) -> None:
        """They would be on their way to the next gate of `layer`."""
        self._expected[layer] = expert_ids

    def gate(self, layer: int, topk_ids: np.ndarray) -> list[bool]:
        """The next event of `layer` has chosen topk_ids [K]: of each expert expected there, whether it is among them.
        """
        expected = self._expected.pop(layer, None)
        if not expected:
            return []
        chosen = set(topk_ids.tolist())
        found = [expert in chosen for expert in expected]
        right = sum(found)
        self.right += right
        self.wrong += len(found) - right
        return found
