"""Fetch by what a horizon forecaster says of a layer's next event: the same numbers that eviction goes by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.backend import Activations, Array, Backend
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast
from pearl_cli.predict.horizon import HorizonForecaster


class HorizonPrefetch:
    """Forecasts layer l + stride from what its own forecaster said after its last event, a whole token ahead.

    shared: the forecaster also serves eviction and is told of every event there.
    """

    def __init__(self, forecaster: HorizonForecaster, backend: Backend, stride: int, shared: bool) -> None:
        self.name = forecaster.name
        self._forecaster = forecaster
        self._backend = backend
        self._shared = shared
        layers = forecaster.card.layers
        self._target = {layer: layers[(i + stride) % len(layers)] for i, layer in enumerate(layers)}

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        if not self._shared:
            self._forecaster.begin(token_ids, start, phase)

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        if not self._shared:
            self._forecaster.observe(layer, self._backend.to_host(a.x), routing.topk_ids)
        target = self._target[layer]
        latest = self._forecaster.latest.get(target)
        return [] if latest is None else [Forecast(target, latest[0])]
