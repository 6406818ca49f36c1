"""ProMoE's predictor: per layer a two-layer network from the router's input to the experts of a layer further on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kernels.backend import Activations, Array, Backend
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast
from pearl_cli.predict.horizon import sigmoid
from pearl_cli.predict.online_calibration import OnlineCalibration
from pearl_cli.predict.predictor_file import PredictorCard


class StrideMLP:
    """Forecasts the layer `stride` layers with experts further on, on the next token where that wraps around;
    recalibrated by what those layers then choose.
    """

    name = "mlp"

    def __init__(self, card: PredictorCard, arrays: Mapping[str, np.ndarray], backend: Backend) -> None:
        self.card = card
        self._arrays = arrays
        self._backend = backend
        self._calibration = {layer: OnlineCalibration(1, card.num_experts) for layer in card.layers}
        self._pending: dict[int, np.ndarray] = {}  # raw logits [E] by the layer they were forecast for
        layers = card.layers
        self._target = {layer: layers[(i + card.stride) % len(layers)] for i, layer in enumerate(layers)}

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def logits(self, layer: int, x: np.ndarray) -> np.ndarray:
        """As trained, float32 [T, E], of the target layer's experts."""
        arrays, blk = self._arrays, f"blk.{layer}."
        h = np.maximum(x @ arrays[blk + "w1"] + arrays[blk + "b1"], 0.0)
        result: np.ndarray = h @ arrays[blk + "w2"] + arrays[blk + "b2"]
        return result

    def scores(self, layer: int, x: np.ndarray) -> np.ndarray:
        """Probabilities float32 [T, E] as trained."""
        return sigmoid(self.logits(layer, x))

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        decided = self._pending.pop(layer, None)
        if decided is not None:
            self._calibration[layer].settle(decided, routing.topk_ids[-1])
        target = self._target[layer]
        raw = self.logits(layer, self._backend.to_host(a.x)[-1:])[0]
        self._pending[target] = raw
        corrected = self._calibration[target].corrected(raw[None])[0].astype(np.float32)
        return [Forecast(target, sigmoid(corrected))]
