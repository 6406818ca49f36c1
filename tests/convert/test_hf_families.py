"""What single architectures' config.json may say: the forms of Gemma 4's two kinds of layers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from convert.model_metadata import ModelDims, WindowHeads
from models.errors import CheckpointError, UnsupportedError
from tests.hf_config_of import hf_config_of

COMMON = {
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50,
    "max_position_embeddings": 256, "intermediate_size": 48, "rms_norm_eps": 1e-6, "sliding_window": 16,
}  # fmt: skip
GEMMA4 = {
    **COMMON, "architectures": ["Gemma4ForCausalLM"], "head_dim": 16, "enable_moe_block": True, "num_experts": 5,
    "top_k_experts": 2, "moe_intermediate_size": 32, "hidden_activation": "gelu_pytorch_tanh",
    "attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 32, "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
}  # fmt: skip
LFM2 = {
    **COMMON, "architectures": ["Lfm2MoeForCausalLM"], "num_experts": 5, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "num_dense_layers": 1, "rope_theta": 1e6, "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention"] * 3,
}  # fmt: skip
PHI = {
    **COMMON, "architectures": ["PhiMoEForCausalLM"], "num_local_experts": 5, "num_experts_per_tok": 2,
    "rope_theta": 1e4, "hidden_act": "silu", "attention_bias": True, "lm_head_bias": True,
    "rope_scaling": {
        "type": "longrope", "original_max_position_embeddings": 32, "short_mscale": 1.2, "long_mscale": 1.2,
        "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
    },
}  # fmt: skip


def dims(values: dict[str, Any], **changes: Any) -> ModelDims:
    return hf_config_of(values, **changes).dims()


def test_gemma4_heads_stated_once() -> None:
    found = dims(GEMMA4)
    assert (found.head_dim, found.num_kv_heads) == (32, 1)
    assert found.window_heads == WindowHeads(num_kv_heads=2, head_dim=16, rope_theta=1e4)
    assert found.window_layers == (True,) * 5 + (False,)  # every sixth sees everything, where the list is left out
    assert found.rope_scaling is not None
    assert found.rope_scaling.tensors["rope_freqs.weight"] == (1.0,) * 4 + (1e30,) * 12
    assert dims(GEMMA4, attention_k_eq_v=False).num_kv_heads == 2, "the other number is for shared values only"


def test_gemma4_heads_stated_layer_by_layer() -> None:
    own = {"head_dim": 48, "num_key_value_heads": 4}
    kinds = ["sliding_attention", "full_attention"] * 3
    stated = {"layer_types": kinds, "per_layer_config": {"1": own, "3": own, "5": own}}
    found = dims(GEMMA4, global_head_dim=None, num_global_key_value_heads=None, **stated)
    assert (found.head_dim, found.num_kv_heads) == (48, 4)
    stated["per_layer_config"] = {"1": own, "3": {**own, "head_dim": 32}, "5": own}
    with pytest.raises(UnsupportedError, match="per_layer_config"):
        dims(GEMMA4, **stated)


@pytest.mark.parametrize("value", ["x", 1, [], True, {"5": None}, {"5": []}, {"5": "x"}])
def test_gemma4_layers_of_another_form(value: Any) -> None:
    with pytest.raises(CheckpointError, match="per_layer_config is no JSON object of objects"):
        dims(GEMMA4, per_layer_config=value)


@pytest.mark.parametrize("share", [-0.5, 2, 2**40])
def test_gemma4_turns_a_share_of_a_head(share: float) -> None:
    ropes = GEMMA4["rope_parameters"]
    whole = {**ropes, "full_attention": {**ropes["full_attention"], "partial_rotary_factor": share}}
    with pytest.raises(CheckpointError, match=f"partial_rotary_factor is {float(share)}; a share"):
        dims(GEMMA4, rope_parameters=whole)


def test_gemma4_inside_a_model_that_sees() -> None:
    values = {"architectures": ["Gemma4ForConditionalGeneration"], "text_config": {**GEMMA4, "architectures": None}}
    values["text_config"].pop("architectures")
    assert dims(values).num_experts_per_tok == 2


@pytest.mark.parametrize(
    ("values", "changes", "says"),
    [
        (GEMMA4, {"enable_moe_block": False}, "enable_moe_block False"),
        (GEMMA4, {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input 256"),
        (GEMMA4, {"num_kv_shared_layers": 2}, "num_kv_shared_layers 2"),
        (GEMMA4, {"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        (GEMMA4, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
        (GEMMA4, {"layer_types": ["sliding_attention"] * 6}, "the last must be full_attention"),
        (GEMMA4, {"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters without 'sliding_attention'"),
        (LFM2, {"conv_bias": True}, "conv_bias True"),
        (LFM2, {"use_expert_bias": False}, "use_expert_bias False"),
        (LFM2, {"layer_types": ["conv"] * 5}, "layer_types"),
        (PHI, {"num_experts_per_tok": 1}, "num_experts_per_tok 1"),
        (PHI, {"router_jitter_noise": 0.1}, "router_jitter_noise 0.1"),
        (PHI, {"rope_scaling": {**PHI["rope_scaling"], "long_mscale": 1.3}}, "long_mscale 1.3 differ"),
        (PHI, {"rope_scaling": {**PHI["rope_scaling"], "long_factor": [2.0] * 7}}, "long_factor is no list of 8"),
        (PHI, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear' is not supported for phimoe"),
    ],
)  # type: ignore[misc]
def test_what_is_not_computed_is_refused(values: dict[str, Any], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        dims(values, **changes)


def test_what_is_missing_is_named() -> None:
    for values, key in ((GEMMA4, "moe_intermediate_size"), (LFM2, "moe_intermediate_size"), (PHI, "num_local_experts")):
        with pytest.raises(CheckpointError, match="num_experts" if values is PHI else key):
            dims(values, **{key: None})
