"""Trinity's config.json: what is read, and what is refused since a GGUF cannot say it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from models.errors import CheckpointError, UnsupportedError
from tests.hf_config_of import hf_config_of

LAYERS = 32
KINDS = ["full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(LAYERS)]
PUBLISHED = {
    "architectures": ["AfmoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": LAYERS, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "max_position_embeddings": 131072, "vocab_size": 200192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "num_experts": 128, "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
    "num_dense_layers": 2, "route_scale": 2.826, "route_norm": True, "score_func": "sigmoid", "mup_enabled": True,
    "sliding_window": 2048, "global_attn_every_n_layers": 4, "layer_types": KINDS, "rope_theta": 10000,
    "n_group": 1, "topk_group": 1, "num_expert_groups": 1, "num_limited_groups": 1,
}  # fmt: skip

read = partial(hf_config_of, PUBLISHED)


def test_the_published_config() -> None:
    found = read().dims()
    assert (found.num_experts, found.num_experts_per_tok, found.shared_width, found.leading_dense) == (128, 8, 1024, 2)
    assert (found.sliding_window, found.window_layers, found.router_scale) == (2048, None, 2.826)
    assert found.has_selection_bias
    assert found.output_gate
    assert read(layer_types=None).dims() == found


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"mup_enabled": False}, UnsupportedError, "mup_enabled must be true"),
        ({"mup_enabled": None}, UnsupportedError, "mup_enabled must be true"),
        ({"layer_types": KINDS[::-1]}, UnsupportedError, "only every fourth layer may be full_attention"),
        ({"layer_types": None, "global_attn_every_n_layers": 8}, UnsupportedError, "only every fourth layer"),
        ({"score_func": "softmax"}, UnsupportedError, "score_func 'softmax'"),
        ({"route_norm": False}, UnsupportedError, "route_norm False"),
        ({"num_expert_groups": 4}, UnsupportedError, "num_expert_groups 4"),
        ({"sliding_window": None}, CheckpointError, "sliding_window is missing"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        read(**changes).dims()
