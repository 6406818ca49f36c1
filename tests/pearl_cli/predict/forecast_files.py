"""Small predictors with random weights, for tests."""

from __future__ import annotations

import dataclasses

import numpy as np

from pearl_cli.predict.predictor_file import PredictorCard, tensor_shapes

CARD = PredictorCard(
    kind="horizon-mlp", fingerprint="f" * 32, model="tiny", layers=(0, 2), num_experts=6, num_experts_per_tok=2,
    hidden_size=10, width=8, horizon=3, stride=0, training_tokens=100, held_out_tokens=10, recall=(0.5, 0.4, 0.3),
    ece=0.01,
)  # fmt: skip


def random_predictor(kind: str = "horizon-mlp", **changes: object) -> tuple[PredictorCard, dict[str, np.ndarray]]:
    """A card and its tensors, float32 values that half precision holds exactly."""
    horizon = {"horizon": 1, "recall": (0.5,), "stride": 1} if kind == "mlp" else {}
    card = dataclasses.replace(CARD, kind=kind, **{**horizon, **changes})  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    return card, {
        name: rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        for name, shape in tensor_shapes(card).items()
    }
