"""Judge a trained predictor on held-out tokens by the very code that runs it, without what it learns while serving:
recall by horizon and calibration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from pearl_cli.predict.calibration import expected_calibration_error, recall
from pearl_cli.predict.choose import make_forecaster
from pearl_cli.predict.mlp import StrideMLP
from pearl_cli.predict.predictor_file import PredictorCard
from pearl_cli.predict.train_data import RecordedTokens, horizon_labels, stride_labels


def turns_of(recorded: RecordedTokens) -> list[slice]:
    """The rows of each turn, in order."""
    borders = np.flatnonzero(np.diff(recorded.turn)) + 1
    edges = [0, *borders.tolist(), len(recorded.turn)]
    return [slice(first, last) for first, last in pairwise(edges)]


def forecasts(recorded: RecordedTokens, card: PredictorCard, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """float32 [N, L, K, E], turn by turn as the runtime would see them."""
    if card.kind == "mlp":
        mlp = StrideMLP(card, arrays, _Host())  # type: ignore[arg-type]
        scores = [mlp.scores(layer, recorded.hidden[:, i].astype(np.float32)) for i, layer in enumerate(card.layers)]
        return np.stack(scores, axis=1)[:, :, None]
    forecaster = make_forecaster(card, arrays, recalibrates=False)
    shape = (len(recorded.hidden), len(card.layers), card.horizon, card.num_experts)
    result = np.empty(shape, np.float32)
    for rows in turns_of(recorded):
        forecaster.begin(recorded.token[rows], int(recorded.step[rows.start]), "decode")
        for i, layer in enumerate(card.layers):
            x = recorded.hidden[rows, i].astype(np.float32)
            result[rows, i] = forecaster.observe(layer, x, recorded.topk_ids[rows, i])[0]
    return result


class _Host:
    """Stands where a backend is asked for; arrays are on the host already."""

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array


def judged(recorded: RecordedTokens, card: PredictorCard, arrays: Mapping[str, np.ndarray]) -> PredictorCard:
    """`card` with recall, calibration error and token count of the held-out tokens."""
    p = forecasts(recorded, card, arrays)
    experts, k = card.num_experts, card.num_experts_per_tok
    labels = np.stack(
        [
            stride_labels(recorded, i, card.stride)
            if card.kind == "mlp"
            else horizon_labels(recorded.topk_ids[:, i], recorded.turn, experts, card.horizon)
            for i in range(len(card.layers))
        ],
        axis=1,
    )
    flat_p, flat_y = p.reshape(-1, card.horizon, experts), labels.reshape(-1, card.horizon, experts)
    recalls = tuple(recall(flat_p[:, h], flat_y[:, h], k) for h in range(card.horizon))
    ece = expected_calibration_error(flat_p, flat_y)
    return dataclasses.replace(card, recall=recalls, ece=ece, held_out_tokens=len(recorded.hidden))
