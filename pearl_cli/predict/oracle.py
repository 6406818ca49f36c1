"""Forecasts drawn from recorded routing with a chosen recall and precision, so that the transfer engine can be measured
at any quality of forecast. Only where routing is known beforehand: replays and forced routing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernels.backend import Activations, Array
from models.errors import UsageError
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast

Future = Callable[[int, int], "np.ndarray | None"]
"""(tokens from now: 0 or 1, layer) -> expert ids that will be demanded, None past the end of the record."""


def parse_oracle(name: str) -> tuple[float, float]:
    """(recall, precision) of `oracle:RECALL[:PRECISION]`; precision is 1 when it is not given. Raises UsageError."""
    parts = name.split(":")[1:]
    try:
        recall, precision = float(parts[0]), float(parts[1]) if len(parts) > 1 else 1.0
    except (ValueError, IndexError):
        recall = precision = -1.0
    if len(parts) > 2 or not (0.0 <= recall <= 1.0 and 0.0 < precision <= 1.0):
        raise UsageError(f"--predictor {name}: write oracle:RECALL or oracle:RECALL:PRECISION with shares up to 1")
    return recall, precision


def draw_scores(
    true_ids: np.ndarray, num_experts: int, recall: float, precision: float, rng: np.random.Generator
) -> np.ndarray:
    """float32 [E]: each true expert is forecast with chance `recall`, and as many wrong ones (in the mean) that
    `precision` of all forecasts are right. All forecasts have score `precision`.
    """
    scores = np.zeros(num_experts, np.float32)
    scores[true_ids[rng.random(true_ids.size) < recall]] = precision
    if precision == 1.0:
        return scores
    mean_wrong = true_ids.size * recall * (1.0 - precision) / precision
    others = np.setdiff1d(np.arange(num_experts), true_ids)
    n_wrong = min(others.size, int(mean_wrong) + int(rng.random() < mean_wrong % 1.0))
    scores[rng.choice(others, n_wrong, replace=False)] = precision
    return scores


class Oracle:
    """Forecasts layer l + stride, of the next token where that wraps around. One seed gives one sequence."""

    name = "oracle"

    def __init__(
        self, future: Future, layers: Sequence[int], num_experts: int, recall: float, precision: float, stride: int = 1,
        seed: int = 0,
    ) -> None:  # fmt: skip
        """layers: those with experts, in order."""
        self._future = future
        self._num_experts = num_experts
        self._quality = (recall, precision)
        self._rng = np.random.default_rng(seed)
        self._target = {
            layer: (*divmod(i + stride, len(layers)), layers[(i + stride) % len(layers)])
            for i, layer in enumerate(layers)
        }

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        tokens_ahead, _, target = self._target[layer]
        true_ids = self._future(tokens_ahead, target)
        if true_ids is None:
            return []
        return [Forecast(target, draw_scores(true_ids, self._num_experts, *self._quality, self._rng))]
