"""Probabilities of use at the next K events of a layer, from its router's input and its own past: kind `horizon-mlp`.

logits = W2 relu(W1 x + b1) + b2 + sum_f C_kf log-feature_f of the layer's reuse history, recalibrated while serving.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pearl_cli.predict.expected_next_use import expected_next_use
from pearl_cli.predict.online_calibration import OnlineCalibration
from pearl_cli.predict.predictor_file import PredictorCard
from pearl_cli.predict.reuse_history import NUM_FEATURES, ReuseHistory

_SMALLEST_RATE = 1e-4


class HorizonForecaster:
    """A `NextUse` with one network per layer. latest[layer]: float32 [K, E] after the layer's newest event, or None."""

    def __init__(self, card: PredictorCard, arrays: Mapping[str, np.ndarray], recalibrates: bool = True) -> None:
        """arrays: as `load_predictor` returns them; shared, not changed. recalibrates: False for the sigmoids as they
        were trained.
        """
        self.name = card.kind
        self.card = card
        self.latest: dict[int, np.ndarray] = {}
        self._arrays = arrays
        self._recalibrates = recalibrates
        # Imported here: numba takes half a second to load, and replays without a trained forecast do not come here.
        from kernels.cpu.horizon_head import forecast_one

        self._forecast_one = forecast_one
        self._calibration = {layer: OnlineCalibration(card.horizon, card.num_experts) for layer in card.layers}
        self._history = {layer: ReuseHistory(card.num_experts, card.num_experts_per_tok) for layer in card.layers}
        # of one token: a decoded one allocates nothing of that size
        shape = (1, card.horizon, card.num_experts)
        self._probabilities = {layer: np.empty(shape, np.float32) for layer in card.layers}
        self._features = np.empty((1, NUM_FEATURES, card.num_experts), np.float32)
        self._compile()

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def fresh(self) -> HorizonForecaster:
        return type(self)(self.card, self._arrays, self._recalibrates)

    def expected(self, layer: int, x: np.ndarray, topk_ids: np.ndarray) -> np.ndarray:
        """As `NextUse.expected`."""
        if len(x) == 1:
            return self._observe_one(layer, self._states(layer, x), topk_ids)[2]
        probabilities, frequency = self.observe(layer, x, topk_ids)
        # Beyond the horizon an expert is taken to have no memory, at a rate between the last forecast and its frequency
        # over about 100 events: on recorded text that told next uses apart better than a moving mean of reuse gaps.
        rate = 0.5 * (probabilities[:, -1] + frequency)
        return expected_next_use(probabilities, 1.0 / np.maximum(rate, _SMALLEST_RATE))

    def observe(self, layer: int, x: np.ndarray, topk_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One call of `layer`: (probabilities float32 [T, K, E], slowest frequency float64 [T, E] after each event);
        remembers the events. One token's probabilities are there until the layer's next call.
        """
        card, blk = self.card, f"blk.{layer}."
        states = self._states(layer, x)
        if len(x) == 1:
            return self._observe_one(layer, states, topk_ids)[:2]
        flat = states @ self._arrays[blk + "w2"]
        flat += self._arrays[blk + "b2"]
        logits: np.ndarray = flat.reshape(len(x), card.horizon, card.num_experts)
        features, frequency = self._history[layer].record_all(topk_ids)
        logits += self._arrays[blk + "c"] @ features
        if self._recalibrates:
            self._calibration[layer].recalibrate(logits, topk_ids)
        probabilities = sigmoid(logits)
        self.latest[layer] = probabilities[-1]
        return probabilities, frequency

    def _observe_one(
        self, layer: int, states: np.ndarray, topk_ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `observe` and, third, `expected`, of one token whose network has `states` [1, width], compiled."""
        probabilities = self._probabilities[layer]
        frequency, expected = np.empty((2, 1, self.card.num_experts))
        history, calibration = self._history[layer], self._calibration[layer]
        self._run_one(layer, states, topk_ids, history, calibration, frequency, expected)
        self.latest[layer] = probabilities[0]
        return probabilities, frequency, expected

    def _states(self, layer: int, x: np.ndarray) -> np.ndarray:
        """float32 [T, width] that the head reads."""
        h: np.ndarray = x @ self._arrays[f"blk.{layer}.w1"]
        h += self._arrays[f"blk.{layer}.b1"]
        np.maximum(h, 0.0, out=h)
        return h

    def _run_one(
        self, layer: int, states: np.ndarray, topk_ids: np.ndarray, history: ReuseHistory, calibration:
        OnlineCalibration, frequency: np.ndarray, expected: np.ndarray,
    ) -> None:  # fmt: skip
        """Writes the layer's probabilities, `frequency` and `expected` [1, E]."""
        arrays, blk = self._arrays, f"blk.{layer}."
        self._forecast_one(
            states, arrays[blk + "w2"], arrays[blk + "b2"], arrays[blk + "c"], topk_ids.astype(np.int64),
            *history.begin_events(1), self._recalibrates, *calibration.begin_events(1), _SMALLEST_RATE,
            self._features, self._probabilities[layer], frequency, expected,
        )  # fmt: skip

    def _compile(self) -> None:
        """Now, not in the first token."""
        card, one = self.card, np.zeros((1, 1), np.int64)
        history, calibration = ReuseHistory(card.num_experts, 1), OnlineCalibration(card.horizon, card.num_experts)
        history.record_all(one)
        calibration.recalibrate(np.zeros((1, card.horizon, card.num_experts), np.float32), one)
        frequency, expected = np.empty((2, 1, card.num_experts))
        states = np.zeros((1, card.width), np.float32)
        self._run_one(card.layers[0], states, one, history, calibration, frequency, expected)


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-z)) in place, float32; z beyond 30 is cut, where nothing is lost."""
    np.clip(z, -30.0, 30.0, out=z)
    np.negative(z, out=z)
    np.exp(z, out=z)
    z += 1.0
    np.reciprocal(z, out=z)
    return z
