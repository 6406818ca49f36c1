"""Whole models on the GPU path, through Triton's interpreter: tiny ones give the logits of transformers, the demo gives
those of the reference.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import models.demo
from kernels.gpu.backend import GpuBackend
from kernels.reference.backend import ReferenceBackend
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from tests.tiny_models import hf_logits, prompt, tiny_model, write_gguf
from tests.tolerances import KV_F16_RELATIVE, LOGITS_RELATIVE

N_TOKENS, N_PREFILL = 12, 10


def logits_of(
    path: Path, backend: GpuBackend | ReferenceBackend, ids: np.ndarray, kv: str, at_once: int = N_PREFILL
) -> np.ndarray:
    """Logits of all tokens: `at_once` of them together, the others one by one."""
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), backend)
        cache = model.new_cache(16, kv, kv)  # Phi's original context: its rotation goes by the room in the cache
        rows = [model.forward(ids[:at_once], cache, experts, "prefill", "all")]
        rows += [model.forward(ids[i : i + 1], cache, experts, "decode", "all") for i in range(at_once, ids.size)]
    return np.concatenate(rows)


# Per-head keys, latent attention with a shared expert, sinks and biases in windows, and recurrent layers: with a prompt
# long enough for the ways of many tokens. The others show that all their ops are there.
BOTH_WAYS = ("olmoe", "deepseek2", "gpt-oss", "qwen3next")


@pytest.mark.parametrize(
    "family",
    [
        "olmoe", "deepseek2", "gpt-oss", "qwen3next", "gemma4", "glm4moe", "granitemoe", "lfm2moe", "llama", "phimoe",
        "qwen2moe", "qwen35moe", "qwen3moe", "minimax-m2", "dots1", "ernie4_5-moe", "hunyuan-moe",
        "qwen3vlmoe", "mellum", "afmoe", "exaone-moe", "hy_v3", "granitehybrid",
    ],
)  # fmt: skip
def test_tiny_models_give_the_logits_of_transformers(gpu: GpuBackend, family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    path = tmp_path / "tiny.gguf"
    write_gguf(model, path, family)
    ids, at_once = (prompt(N_TOKENS), N_PREFILL) if family in BOTH_WAYS else (prompt(3), 2)
    found, expected = logits_of(path, gpu, ids, "f32", at_once), hf_logits(model, ids)
    assert np.abs(found - expected).max() < LOGITS_RELATIVE * np.abs(expected).max()


def test_the_demo_model_gives_the_logits_of_the_reference(gpu: GpuBackend) -> None:
    (path,) = Path(models.demo.__file__).parent.glob("*-00001-of-*.gguf")
    ids = np.array([300, 301, 302], np.int64)
    found, expected = logits_of(path, gpu, ids, "f16", 2), logits_of(path, ReferenceBackend(), ids, "f16", 2)
    assert np.abs(found - expected).max() < KV_F16_RELATIVE * np.abs(expected).max()
