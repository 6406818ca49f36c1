"""ProMoE's predictor: per layer a two-layer network from the router's input to the experts of a layer further on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kernels.backend import Activations, Array, Backend
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast
from pearl_cli.predict.horizon import sigmoid
from pearl_cli.predict.predictor_file import PredictorCard


class StrideMLP:
    """Forecasts the layer `stride` layers with experts further on, on the next token where that wraps around."""

    name = "mlp"

    def __init__(self, card: PredictorCard, arrays: Mapping[str, np.ndarray], backend: Backend) -> None:
        self.card = card
        self._arrays = arrays
        self._backend = backend
        layers = card.layers
        self._target = {layer: layers[(i + card.stride) % len(layers)] for i, layer in enumerate(layers)}

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def scores(self, layer: int, x: np.ndarray) -> np.ndarray:
        """Probabilities float32 [T, E] of the target layer's experts."""
        arrays, blk = self._arrays, f"blk.{layer}."
        h = np.maximum(x @ arrays[blk + "w1"] + arrays[blk + "b1"], 0.0)
        return sigmoid(h @ arrays[blk + "w2"] + arrays[blk + "b2"])

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        row = self._backend.to_host(a.x)[-1:]
        return [Forecast(self._target[layer], self.scores(layer, row)[0])]
