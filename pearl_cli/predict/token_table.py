"""What a token's earlier occurrences used, layer by layer: known before the first layer runs, so it can look as far
ahead as one likes. Learns while serving.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from kernels.backend import Activations, Array
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast
from pearl_cli.predict.ema import EmaFrequency
from pearl_cli.predict.rank_calibration import RankCalibration

_MAX_BYTES = 16 << 20  # of remembered tokens, the least recent forgotten first
_RECENT = 0.5  # weight of the newest occurrence


class TokenTable:
    """Forecasts layer l + stride of the running token; a token never seen is forecast by frequency."""

    name = "token-table"

    def __init__(self, num_layers: int, num_experts: int, num_experts_per_tok: int, stride: int = 1) -> None:
        self._stride = stride
        self._popular = EmaFrequency(num_layers, num_experts, num_experts_per_tok)
        self._calibration = RankCalibration(num_layers, num_experts, num_experts_per_tok)
        self._table: OrderedDict[int, np.ndarray] = OrderedDict()
        self._shape = (num_layers, num_experts)
        self._max_tokens = max(1, _MAX_BYTES // (4 * num_layers * num_experts))
        self._token = -1

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        self._token = int(token_ids[-1])

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        ids = routing.topk_ids[-1]
        self._calibration.settle(layer, ids)
        self._popular.record(layer, ids)
        target = layer + self._stride
        known = self._table.get(self._token)
        self._learn(layer, ids)
        if target >= self._shape[0]:
            return []
        values = self._popular.frequency[target]
        if known is not None:
            values = values + known[target]
        return [Forecast(target, self._calibration.scores(target, values))]

    def _learn(self, layer: int, ids: np.ndarray) -> None:
        row = self._table.get(self._token)
        if row is None:
            row = self._table[self._token] = np.zeros(self._shape, np.float32)
            if len(self._table) > self._max_tokens:
                self._table.popitem(last=False)
        self._table.move_to_end(self._token)
        row[layer] *= 1.0 - _RECENT
        row[layer, ids] += _RECENT
