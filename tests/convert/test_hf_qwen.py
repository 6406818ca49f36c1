"""Folders of Qwen3-VL with experts: the text half is converted, whichever way its experts are stacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convert.hf_config import HfConfig
from convert.pipeline import ConvertOptions, convert
from models.errors import CheckpointError, UnsupportedError
from models.gguf import GGUFModel
from tests.tiny_models import save_hf, tiny_model
from tests.tiny_seeing import as_published

F32 = ConvertOptions(quant="f32", with_vocab=False)
PUBLISHED = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "vision_config": {"deepstack_visual_indexes": [8, 16, 24]},
    "text_config": {
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "rms_norm_eps": 1e-6, "rope_theta": 5000000, "mlp_only_layers": [], "decoder_sparse_step": 1,
        "attention_bias": False, "hidden_act": "silu",
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    },
}  # fmt: skip


def test_the_published_layout_holds_the_same_model(tmp_path: Path) -> None:
    model = tiny_model("qwen3vlmoe")
    plain = convert(save_hf(model, tmp_path / "plain"), tmp_path / "a", F32)
    notes: list[str] = []
    published = as_published(save_hf(model, tmp_path / "published"))
    path = convert(published, tmp_path / "b", F32, note=notes.append)
    assert [note for note in notes if note.startswith("1 tensor is left behind: such tensors see pictures")]
    with GGUFModel.open(plain) as a, GGUFModel.open(path) as b:
        assert {n: a.read(n).tobytes() for n in a.tensors} == {n: b.read(n).tobytes() for n in b.tensors}
        assert b.metadata["qwen3vlmoe.n_deepstack_layers"] == 1
        assert b.metadata["qwen3vlmoe.rope.dimension_sections"].tolist() == [4, 4, 4, 0]


def test_the_published_config() -> None:
    found = HfConfig(Path("hf"), PUBLISHED).dims()
    assert (found.num_experts, found.num_experts_per_tok, found.moe_intermediate_size) == (128, 8, 768)
    assert (found.rope_sections, found.deepstack_layers, found.rope_theta) == ((24, 20, 20, 0), 3, 5e6)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"mlp_only_layers": [0]}, UnsupportedError, r"mlp_only_layers \[0\]"),
        ({"attention_bias": True}, UnsupportedError, "attention_bias True"),
        ({"rope_scaling": {"mrope_interleaved": False}}, UnsupportedError, "mrope_interleaved False"),
        ({"rope_scaling": {"mrope_section": [24, -1]}}, CheckpointError, "mrope_section"),
        ({"rope_scaling": {"mrope_section": [24, 2**31]}}, CheckpointError, "mrope_section"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    text = {**PUBLISHED["text_config"], **changes}  # type: ignore[dict-item]
    with pytest.raises(error, match=says):
        HfConfig(Path("hf"), {**PUBLISHED, "text_config": text}).dims()
