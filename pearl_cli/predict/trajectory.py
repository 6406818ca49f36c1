"""PEARL's trajectory predictor: a projection of the router's input, two GRU layers over decode steps, a head of K x E
sigmoids, one network per model layer. The state starts at zero wherever the sequence does not go on from where it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pearl_cli.predict.horizon import HorizonForecaster, sigmoid
from pearl_cli.predict.predictor_file import PredictorCard

GRU_LAYERS = 2


class TrajectoryForecaster(HorizonForecaster):
    def __init__(self, card: PredictorCard, arrays: Mapping[str, np.ndarray], recalibrates: bool = True) -> None:
        super().__init__(card, arrays, recalibrates)
        self._state = {layer: np.zeros((GRU_LAYERS, card.width), np.float32) for layer in card.layers}
        self._next_position = 0

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        if start == 0 or start != self._next_position:
            for state in self._state.values():
                state[:] = 0.0
        self._next_position = start + len(token_ids)

    def _states(self, layer: int, x: np.ndarray) -> np.ndarray:
        sequence: np.ndarray = x @ self._arrays[f"blk.{layer}.w1"]
        for i in range(GRU_LAYERS):
            sequence = self._run(f"blk.{layer}.gru{i}.", sequence, self._state[layer][i])
        return sequence

    def _run(self, prefix: str, sequence: np.ndarray, state: np.ndarray) -> np.ndarray:
        """One GRU layer over [T, width] from `state`, which is left at the last step."""
        arrays, width = self._arrays, state.size
        w_state, b_state = arrays[prefix + "w_state"], arrays[prefix + "b_state"]
        inputs = sequence @ arrays[prefix + "w_in"] + arrays[prefix + "b_in"]
        out = np.empty_like(sequence)
        for t, given in enumerate(inputs):
            kept = state @ w_state + b_state
            gates = sigmoid(given[: 2 * width] + kept[: 2 * width])
            reset, update = gates[:width], gates[width:]
            candidate = np.tanh(given[2 * width :] + reset * kept[2 * width :])
            state[:] = candidate + update * (state - candidate)
            out[t] = state
        return out
