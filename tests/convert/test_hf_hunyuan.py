"""Hunyuan's config.json: numbers listed layer by layer, a rotation stretched by a fixed alpha, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from models.errors import CheckpointError, UnsupportedError
from tests.hf_config_of import hf_config_of
from tests.tolerances import REFERENCE_RELATIVE

LAYERS = 32
PUBLISHED = {
    "architectures": ["HunYuanMoEV1ForCausalLM"], "hidden_size": 4096, "intermediate_size": 3072,
    "num_hidden_layers": LAYERS, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 32768, "vocab_size": 128167, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "num_experts": 64, "moe_topk": [8] * LAYERS, "moe_intermediate_size": [3072] * LAYERS,
    "num_shared_expert": [1] * LAYERS, "use_mixed_mlp_moe": True, "use_qk_norm": True, "use_cla": False,
    "moe_layer_num_skipped": 0, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
    "rope_scaling": {
        "type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}  # fmt: skip

read = partial(hf_config_of, PUBLISHED)


def test_the_published_config() -> None:
    config = read()
    found = config.dims()
    assert (found.num_experts, found.num_experts_per_tok, found.moe_intermediate_size) == (64, 8, 3072)
    assert (found.shared_width, found.leading_dense, found.has_selection_bias) == (3072, None, False)
    assert round(found.rope_theta, 4) == 11158839.9251  # as llama.cpp's converter has it
    assert found.rope_scaling is None
    assert found.context_length == 262144
    assert config.notes == ["max_position_embeddings is 32768; with rope alpha 1000 the context is 262144"]


def test_another_alpha_keeps_the_stated_context() -> None:
    config = read(rope_scaling={"type": "dynamic", "alpha": 2.0})
    assert config.dims().context_length == 32768
    assert config.dims().rope_theta == pytest.approx(1e4 * 2 ** (128 / 126), rel=REFERENCE_RELATIVE)
    assert read(rope_scaling=None).dims().rope_theta == 1e4


def test_numbers_stated_once_and_several_shared_experts() -> None:
    found = read(moe_topk=4, moe_intermediate_size=None, num_shared_expert=2).dims()
    assert (found.num_experts_per_tok, found.moe_intermediate_size, found.shared_width) == (4, 3072, 6144)
    assert read(num_experts=[16] * LAYERS).dims().num_experts == 16


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"moe_topk": [8] * 31 + [4]}, "moe_topk differs from layer to layer"),
        ({"num_experts": [64] * 31 + [32]}, "num_experts differs from layer to layer"),
        ({"moe_intermediate_size": [3072, 1024] * 16}, "moe_intermediate_size differs from layer to layer"),
        ({"num_shared_expert": []}, "num_shared_expert differs"),
        ({"use_cla": True}, "use_cla True"),
        ({"moe_layer_num_skipped": 1}, "moe_layer_num_skipped 1"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not supported for hunyuan-moe"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 2.0}}, "factor 2.0"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 0.5}}, "rope alpha 0.5"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        read(**changes).dims()


def test_a_list_of_something_else_is_named() -> None:
    with pytest.raises(CheckpointError, match="moe_topk is '8', not a whole number"):
        read(moe_topk=["8"] * LAYERS).dims()
