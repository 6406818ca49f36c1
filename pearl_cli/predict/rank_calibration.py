"""Turn a ranking of experts into probabilities, learned while serving: how often was the expert at this rank used?"""

from __future__ import annotations

import numpy as np

_SMOOTHING = 0.02  # weight of the newest event once many were seen
_WEIGHT_OF_GUESS = 4  # events that what is taken before anything was seen counts as
_RANKS_PER_CHOSEN = 4  # ranks beyond this many times the experts per token get probability 0


class RankCalibration:
    """rate float64 [L, R]: chance that the expert at each rank of a forecast of the layer is used."""

    def __init__(self, num_layers: int, num_experts: int, num_experts_per_tok: int) -> None:
        num_ranks = min(num_experts, _RANKS_PER_CHOSEN * num_experts_per_tok)
        share = num_experts_per_tok / num_experts
        # Before anything is seen a forecast is trusted halfway within the experts per token, and hardly beyond.
        first = np.where(np.arange(num_ranks) < num_experts_per_tok, 0.5, share / 2)
        self.rate = np.tile(first, (num_layers, 1))
        self._seen = [_WEIGHT_OF_GUESS] * num_layers
        self._ranking: dict[int, np.ndarray] = {}
        self._num_experts = num_experts

    def settle(self, layer: int, topk_ids: np.ndarray) -> None:
        """The layer has chosen topk_ids [K]: learn from the ranking that was forecast for it, if any."""
        ranking = self._ranking.pop(layer, None)
        if ranking is None:
            return
        used = np.zeros(self._num_experts)
        used[topk_ids] = 1.0
        self._seen[layer] += 1
        self.rate[layer] += max(_SMOOTHING, 1.0 / self._seen[layer]) * (used[ranking] - self.rate[layer])

    def scores(self, layer: int, values: np.ndarray) -> np.ndarray:
        """float32 [E] probabilities of a forecast for `layer` whose larger `values` [E] are likelier."""
        rate = self.rate[layer]
        ranking = np.argsort(-values, kind="stable")[: rate.size]
        self._ranking[layer] = ranking
        scores = np.zeros(self._num_experts, np.float32)
        scores[ranking] = rate
        return scores
