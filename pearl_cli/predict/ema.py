"""Decayed frequency of use: the honest rival of every trained forecast. Needs no file and learns while serving."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.backend import Activations, Array
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast

DECAY = 0.9
_SMALLEST = 1e-6


class EmaFrequency:
    """frequency float64 [L, E]: decayed share of each layer's events that used an expert."""

    def __init__(self, num_layers: int, num_experts: int, num_experts_per_tok: int) -> None:
        self.frequency = np.full((num_layers, num_experts), num_experts_per_tok / num_experts)

    def record(self, layer: int, expert_ids: np.ndarray) -> np.ndarray:
        """One event of `layer`; returns the row after it (a view)."""
        row: np.ndarray = self.frequency[layer]
        row *= DECAY
        row[expert_ids] += 1.0 - DECAY
        return row


class EmaNextUse:
    """Expected next use of a memoryless expert: one over its frequency, that taken as at least _SMALLEST."""

    name = "ema"

    def __init__(self, num_layers: int, num_experts: int, num_experts_per_tok: int) -> None:
        # Imported here: numba takes half a second to load, and replays that evict otherwise do not come here.
        from kernels.cpu.ema import next_uses

        self._shape = (num_layers, num_experts, num_experts_per_tok)
        self._ema = EmaFrequency(*self._shape)
        self._next_uses = next_uses
        next_uses(np.ones(1), np.zeros((1, 1), np.int32), DECAY, _SMALLEST)  # compiled now, not in the first token

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def expected(self, layer: int, x: np.ndarray, topk_ids: np.ndarray) -> np.ndarray:
        frequency, ids = self._ema.frequency[layer], topk_ids.astype(np.int32, copy=False)
        result: np.ndarray = self._next_uses(frequency, ids, DECAY, _SMALLEST)
        return result

    def fresh(self) -> EmaNextUse:
        return EmaNextUse(*self._shape)


class EmaPredictor:
    """Forecasts layer l + stride by its own frequency so far. Sees decoded tokens only."""

    name = "ema"

    def __init__(self, num_layers: int, num_experts: int, num_experts_per_tok: int, stride: int = 1) -> None:
        self._ema = EmaFrequency(num_layers, num_experts, num_experts_per_tok)
        self._stride = stride

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        for ids in routing.topk_ids:
            self._ema.record(layer, ids)
        target = (layer + self._stride) % len(self._ema.frequency)
        return [Forecast(target, self._ema.frequency[target].astype(np.float32))]
