"""ERNIE 4.5's folders: what their config.json may say, and the parts that look several tokens ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.model_metadata import ModelDims
from convert.pipeline import ConvertOptions, convert
from models.errors import CheckpointError, UnsupportedError
from models.gguf import GGUFModel
from tests.hf_config_of import hf_config_of
from tests.tiny_models import save_hf, tiny_model

PUBLISHED = {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "hidden_size": 2560, "intermediate_size": 12288,
    "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128,
    "max_position_embeddings": 131072, "vocab_size": 103424, "rope_theta": 500000, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2, "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1, "moe_layer_end_index": 27, "moe_layer_interval": 1, "moe_gate": "topk",
    "moe_use_aux_free": True, "moe_capacity": [64, 64, 64], "use_bias": False, "tie_word_embeddings": True,
}  # fmt: skip


def dims(**changes: Any) -> ModelDims:
    return hf_config_of(PUBLISHED, **changes).dims()


def test_the_published_config() -> None:
    found = dims()
    assert (found.num_experts, found.num_experts_per_tok, found.moe_intermediate_size) == (64, 6, 1536)
    assert (found.shared_width, found.leading_dense, found.intermediate_size) == (3072, 1, 12288)
    assert found.has_selection_bias
    assert dims(moe_layer_end_index=-1, rope_theta=None) == found
    assert dims(moe_num_shared_experts=0).shared_width == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"moe_layer_interval": 2}, "moe_layer_interval 2"),
        ({"moe_layer_end_index": 26}, "moe_layer_end_index 26 is not supported; supported: -1 or 27"),
        ({"use_bias": True}, "use_bias True"),
        ({"moe_gate_act": "sigmoid"}, "moe_gate_act 'sigmoid'"),
        ({"moe_use_aux_free": False}, "moe_use_aux_free False"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        dims(**changes)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(CheckpointError, match="moe_intermediate_size is missing"):
        dims(moe_intermediate_size=None)


def test_parts_that_look_ahead_are_left_behind(tmp_path: Path) -> None:
    folder = save_hf(tiny_model("ernie4_5-moe"), tmp_path / "hf")
    weights = folder / "model.safetensors"
    ahead = {
        f"model.{name}.weight": np.zeros((64, 64), np.float32)
        for name in ("mtp_block.0.self_attn.q_proj", "mtp_emb_norm.0", "mtp_hidden_norm.0", "mtp_linear_proj.0")
    }
    save_file(load_file(weights) | ahead, weights, {"format": "pt"})
    notes: list[str] = []
    path = convert(folder, tmp_path / "out", ConvertOptions(quant="f32", with_vocab=False), note=notes.append)
    assert [note for note in notes if note.startswith("4 tensors are left behind: they predict several tokens at once")]
    with GGUFModel.open(path) as model:
        assert not [name for name in model.tensors if "mtp" in name]
        assert model.metadata["ernie4_5-moe.interleave_moe_layer_step"] == 1
        assert model.metadata["ernie4_5-moe.expert_shared_feed_forward_length"] == 64
