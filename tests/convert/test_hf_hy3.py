"""Hy3's config.json, and the name of the bias that enters the choice only."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from convert.pipeline import ConvertOptions, convert
from models.errors import UnsupportedError
from models.gguf import GGUFModel
from tests.hf_config_of import hf_config_of
from tests.tiny_models import save_hf, tiny_model

PUBLISHED = {
    "architectures": ["HYV3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 13312, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
    "vocab_size": 120832, "rms_norm_eps": 1e-5, "hidden_act": "silu", "num_experts": 192, "num_experts_per_tok": 8,
    "num_shared_experts": 1, "moe_intermediate_size": 1536, "router_scaling_factor": 2.826, "route_norm": True,
    "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip

read = partial(hf_config_of, PUBLISHED)


def test_the_published_config() -> None:
    config = read()
    found = config.dims()
    assert (found.num_experts, found.shared_width, found.leading_dense, found.router_scale) == (192, 1536, 1, 2.826)
    assert found.rope_theta == 11158840.0
    assert config.unused_layers == 1


@pytest.mark.parametrize("changes", [{"route_norm": False}, {"attention_bias": True}, {"mlp_bias": True}])
def test_what_is_not_computed_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        read(**changes).dims()


@pytest.mark.parametrize("name", ["mlp.expert_bias", "mlp.e_score_correction_bias"])
def test_either_name_of_the_bias_is_found(name: str, tmp_path: Path) -> None:
    weights = save_hf(tiny_model("hy_v3"), tmp_path / "hf") / "model.safetensors"
    tensors = {old.replace("mlp.expert_bias", name): values for old, values in load_file(weights).items()}
    assert any(key.endswith(name) for key in tensors)
    save_file(tensors, weights, {"format": "pt"})
    with GGUFModel.open(convert(weights.parent, tmp_path / "out", ConvertOptions(with_vocab=False))) as model:
        assert "blk.1.exp_probs_b" in model.tensors
