"""Mellum 2's config.json: two kinds of layers with a rotation each, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from models.errors import CheckpointError, UnsupportedError
from tests.hf_config_of import hf_config_of

LAYERS = 28
WINDOW, FULL = "sliding_attention", "full_attention"
YARN = {
    "rope_type": "yarn", "rope_theta": 500000.0, "factor": 16.0, "original_max_position_embeddings": 8192,
    "attention_factor": 1.2772588722239782, "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 500000.0}
PUBLISHED = {
    "architectures": ["MellumForCausalLM"], "hidden_size": 2304, "intermediate_size": 7168,
    "num_hidden_layers": LAYERS, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "max_position_embeddings": 131072, "vocab_size": 98304, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 896, "norm_topk_prob": True,
    "sliding_window": 1024, "use_sliding_window": True, "attention_bias": False,
    "layer_types": [FULL if layer % 4 == 3 else WINDOW for layer in range(LAYERS)],
    "mlp_layer_types": ["sparse"] * LAYERS, "rope_parameters": {FULL: YARN, WINDOW: PLAIN},
}  # fmt: skip

read = partial(hf_config_of, PUBLISHED)


def test_the_published_config() -> None:
    config = read()
    found = config.dims()
    assert (found.sliding_window, found.rope_theta, found.window_theta) == (1024, 5e5, 5e5)
    assert found.window_layers is not None
    assert [layer for layer, windowed in enumerate(found.window_layers) if not windowed] == list(range(3, LAYERS, 4))
    assert found.rope_scaling is not None
    assert (found.rope_scaling.kind, found.rope_scaling.factor, found.rope_scaling.original_context) == (
        "yarn", 16.0, 8192,
    )  # fmt: skip
    assert found.rope_scaling.attention_factor == pytest.approx(1.0)
    assert config.notes == []
    assert read(layer_types=None).dims().window_layers == (False,) * LAYERS


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"mlp_layer_types": ["dense", *["sparse"] * 27]}, UnsupportedError, "mlp_layer_types"),
        ({"layer_types": ["chunked_attention"] * LAYERS}, UnsupportedError, "layer type 'chunked_attention'"),
        ({"rope_parameters": {FULL: YARN}}, UnsupportedError, "rope_parameters without 'sliding_attention'"),
        ({"rope_parameters": {FULL: YARN, WINDOW: YARN}}, UnsupportedError, "rope_type 'yarn'"),
        ({"rope_parameters": {FULL: {**YARN, "mscale": 1}, WINDOW: PLAIN}}, UnsupportedError, "parameter mscale"),
        ({"sliding_window": None}, CheckpointError, "sliding_window is missing"),
        ({"attention_bias": True}, UnsupportedError, "attention_bias True"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        read(**changes).dims()
