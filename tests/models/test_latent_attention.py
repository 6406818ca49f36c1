"""Latent attention's two traps: what YaRN does to softmax and rotation, and the two layouts of the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from kernels.cpu.backend import CpuBackend
from models.config_latent import read_latent
from models.config_rope import RopeConfig
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from models.rope import build_rope_table, rope_frequencies
from tests.tiny_models import prompt, tiny_model, write_gguf
from tests.tolerances import FLOAT32_RELATIVE, PAPER_DECIMALS, REFERENCE_RELATIVE, ROPE_ABSOLUTE

NOPE, ROTATED, FACTOR, ORIGINAL = 128, 64, 40.0, 4096


def scaled(log_multiplier: float) -> dict[str, Any]:
    """Fields of a DeepSeek file with heads of 192 and YaRN by 40, through `read_latent`."""
    values = {
        "q_lora_rank": 0, "kv_lora_rank": 512, "mla_key_length": NOPE + ROTATED, "mla_value_length": 128,
        "n_rot": ROTATED, "rope_scaling": "yarn", "rope_factor": FACTOR, "yarn_log_multiplier": log_multiplier,
        "rope_attention_factor": 1.0,
    }  # fmt: skip
    read_latent(values, "test")
    return values


def rope_of(values: dict[str, Any]) -> RopeConfig:
    return RopeConfig(
        10000.0, ROTATED, True, scaling="yarn", factor=FACTOR, original_context=ORIGINAL,
        attention_factor=values["rope_attention_factor"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mscale", "scale", "ratio"), [(0.707, 0.114721, 1.589626), (1.0, 0.135234, 1.873854)], ids=["V2-Lite", "V3"]
)
def test_yarn_scales_the_softmax_and_leaves_cos_and_sin_alone(mscale: float, scale: float, ratio: float) -> None:
    values = scaled(0.1 * mscale)
    assert values["attention_scale"] == pytest.approx(scale, abs=PAPER_DECIMALS)
    assert values["attention_scale"] * (NOPE + ROTATED) ** 0.5 == pytest.approx(ratio, abs=PAPER_DECIMALS)
    assert rope_frequencies(rope_of(values))[1] == pytest.approx(1.0, rel=REFERENCE_RELATIVE)


@pytest.mark.parametrize("mscale", [0.707, 1.0])
def test_yarn_of_latent_attention_is_transformers(mscale: float) -> None:
    """Frequencies at every distance up to 6000, the factor on them, and the softmax's: each could be wrong alone."""
    config = transformers.DeepseekV3Config(
        hidden_size=64, num_attention_heads=1, qk_nope_head_dim=NOPE, qk_rope_head_dim=ROTATED, kv_lora_rank=16,
        rope_parameters={
            "rope_theta": 10000.0, "rope_type": "yarn", "factor": FACTOR, "mscale": mscale, "mscale_all_dim": mscale,
            "original_max_position_embeddings": ORIGINAL,
        },
    )  # fmt: skip
    values = scaled(0.1 * mscale)
    assert values["attention_scale"] == pytest.approx(DeepseekV3Attention(config, 0).scaling, rel=REFERENCE_RELATIVE)
    cos, sin = DeepseekV3RotaryEmbedding(config)(torch.zeros(1), torch.arange(6000)[None])
    table = build_rope_table(rope_of(values), 6000)
    np.testing.assert_allclose(table.cos, cos[0, :, : ROTATED // 2].numpy(), rtol=0, atol=ROPE_ABSOLUTE)
    np.testing.assert_allclose(table.sin, sin[0, :, : ROTATED // 2].numpy(), rtol=0, atol=ROPE_ABSOLUTE)


def logits_of(path: Path, ids: np.ndarray) -> np.ndarray:
    backend = CpuBackend(1)
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), backend)
        return model.forward(ids, model.new_cache(ids.size, "f32", "f32"), experts, "prefill", "all").copy()


@pytest.mark.parametrize("family", ["deepseek2", "deepseek2_v3"])
def test_both_layouts_give_the_same_logits(family: str, tmp_path: Path) -> None:
    hf, ids = tiny_model(family), prompt(25)
    newer = logits_of(write_gguf(hf, tmp_path / "split.gguf", family), ids)
    older = logits_of(write_gguf(hf, tmp_path / "whole.gguf", family, expanded=True), ids)
    assert np.abs(newer - older).max() <= FLOAT32_RELATIVE * np.abs(newer).max()
