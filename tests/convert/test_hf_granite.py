"""Granite 4.0 H's config.json: which layers are Mamba-2's, whether attention rotates, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.pipeline import ConvertOptions, convert
from models.config_mamba import Mamba2Config
from models.errors import UnsupportedError
from models.gguf import GGUFModel
from tests.hf_config_of import hf_config_of
from tests.tiny_models import save_hf, tiny_model

LAYERS = 40
KINDS = ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(LAYERS)]
PUBLISHED = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 1536, "intermediate_size": 512,
    "num_hidden_layers": LAYERS, "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 100352,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu", "num_local_experts": 64,
    "num_experts_per_tok": 6, "shared_intermediate_size": 1024, "embedding_multiplier": 12,
    "attention_multiplier": 0.0078125, "residual_multiplier": 0.22, "logits_scaling": 6, "layer_types": KINDS,
    "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_conv_bias": True, "mamba_proj_bias": False, "normalization_function": "rmsnorm",
    "position_embedding_type": "nope", "rope_theta": 10000, "attention_bias": False,
}  # fmt: skip

read = partial(hf_config_of, PUBLISHED)


def test_the_published_config() -> None:
    found = read().dims()
    layers = tuple(kind == "mamba" for kind in KINDS)
    assert found.mamba == Mamba2Config(layers, 4, num_groups=1, num_heads=48, state_size=128, head_dim=64)
    assert (found.head_dim, found.shared_width, found.rotates, found.conv_bias) == (128, 1024, False, True)
    newer = {"mamba": "linear_attention", "attention": "full_attention"}
    limits = [0.0, {"__float__": "Infinity"}]
    again = read(layer_types=[newer[kind] for kind in KINDS], mamba_d_head="auto", time_step_limit=limits)
    assert again.dims() == found
    assert read(position_embedding_type="rope", time_step_limit=[0.0, float("inf")]).dims().rotates is True


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_local_experts": 0}, "a dense model"),
        ({"mamba_proj_bias": True}, "mamba_proj_bias True"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"normalization_function": "layernorm"}, "normalization_function 'layernorm'"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type 'alibi'"),
        ({"time_step_limit": [0.001, 0.1]}, r"time_step_limit \[0.001, 0.1\]"),
        ({"mamba_n_groups": 5}, "48 Mamba-2 heads of 64 in 5 groups"),
        ({"mamba_d_head": 32}, "48 Mamba-2 heads of 32 in 1 groups over a width of 3072"),
        ({"layer_types": ["mamba"] * 39 + ["conv"]}, "layer type 'conv'"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        read(**changes).dims()


def test_tensors_of_a_mamba_layer_are_as_a_gguf_keeps_them(tmp_path: Path) -> None:
    """llama.cpp checks each size, those of 1 too."""
    model = tiny_model("granitehybrid")
    options = ConvertOptions(quant="q8_0", with_vocab=False)
    with GGUFModel.open(convert(save_hf(model, tmp_path / "hf"), tmp_path / "out", options)) as gguf:
        own = model.model.layers[0].mamba
        shapes = {name: gguf.tensors[f"blk.0.{name}"].shape for name in ("ssm_a", "ssm_d", "ssm_norm.weight")}
        assert shapes == {"ssm_a": (1, 4), "ssm_d": (1, 4), "ssm_norm.weight": (64, 2)}
        decay = -np.exp(own.A_log.detach().numpy())
        np.testing.assert_array_equal(gguf.array("blk.0.ssm_a").reshape(-1), decay)
        np.testing.assert_array_equal(gguf.array("blk.0.ssm_conv1d.weight"), own.conv1d.weight.detach().numpy()[:, 0])
        kinds = {gguf.tensors[f"blk.0.{name}.weight"].quant_type.name for name in ("ssm_conv1d", "ssm_norm")}
        assert kinds == {"F32"}
        assert gguf.tensors["blk.0.ssm_in.weight"].quant_type.name == "Q8_0"
        assert gguf.metadata["granitehybrid.attention.head_count_kv"].tolist() == [0, 2, 0, 0]
