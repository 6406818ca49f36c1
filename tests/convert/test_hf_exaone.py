"""K-EXAONE's config.json: which layers have a window and which are dense, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from models.errors import CheckpointError, UnsupportedError
from tests.hf_config_of import hf_config_of

LAYERS = 48
KINDS = ["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(LAYERS)]
PUBLISHED = {
    "architectures": ["ExaoneMoEForCausalLM"], "hidden_size": 6144, "intermediate_size": 18432,
    "num_hidden_layers": LAYERS, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 262144, "vocab_size": 153600, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "n_group": 1, "topk_group": 1, "sliding_window": 128, "sliding_window_pattern": "LLLG", "layer_types": KINDS,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "num_nextn_predict_layers": 1,
}  # fmt: skip

read = partial(hf_config_of, PUBLISHED)


def test_the_published_config() -> None:
    found = read().dims()
    assert (found.num_experts, found.num_experts_per_tok, found.shared_width, found.leading_dense) == (128, 8, 2048, 1)
    assert found.window_layers == tuple(kind == "sliding_attention" for kind in KINDS)
    assert (found.sliding_window, found.router_scale, found.num_groups) == (128, 2.5, None)
    assert read(architectures=["ExaoneMoeForCausalLM"], layer_types=None).dims() == found
    assert read(first_k_dense_replace=None, mlp_layer_types=["dense"] * 2 + ["sparse"] * 46).dims().leading_dense == 2


def test_the_last_layer_sees_everything_where_layers_are_not_named() -> None:
    found = read(num_hidden_layers=6, layer_types=None).dims()
    assert found.window_layers == (True, True, True, False, True, False)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"sliding_window_pattern": "LLG"}, UnsupportedError, "sliding_window_pattern 'LLG'"),
        ({"scoring_func": "softmax"}, UnsupportedError, "scoring_func 'softmax'"),
        ({"sliding_window": None}, CheckpointError, "sliding_window is missing"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, UnsupportedError, "rope type 'llama3'"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        read(**changes).dims()
