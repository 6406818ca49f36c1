"""Tiny models through llama.cpp's own converter, where $PEARL_LLAMA_CONVERTER says where its convert_hf_to_gguf.py is:
pearl runs the file with the logits of transformers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.cpu.backend import CpuBackend
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from tests.tiny_models import hf_logits, prompt, save_hf, tiny_model
from tests.tolerances import LOGITS_RELATIVE

CONVERTER = os.environ.get("PEARL_LLAMA_CONVERTER")
RUNNER = Path(__file__).with_name("run_converter.py")
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek2": {"q_lora_rank": 40},
    "deepseek2_v3": {},
    "glm4moe": {},
    "gpt-oss": {},
    "granitemoe": {},
    "granitemoe_shared": {},
    "lfm2moe": {"tie_word_embeddings": True, "routed_scaling_factor": 1.0},  # it knows no other
    "llama": {},
    "olmoe": {},
    "qwen2moe": {},
    "qwen3moe": {},
}

pytestmark = pytest.mark.skipif(CONVERTER is None, reason="no $PEARL_LLAMA_CONVERTER: no converter to compare with")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """Of each family the model and the file that the converter made, all in one process."""
    folder = tmp_path_factory.mktemp("converter")
    models = {family: tiny_model(family, **fields) for family, fields in FAMILIES.items()}
    lines = [f"{save_hf(model, folder / family)} {folder / family}.gguf\n" for family, model in models.items()]
    command = [sys.executable, str(RUNNER), str(CONVERTER)]
    done = subprocess.run(command, input="".join(lines), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return {family: (model, folder / f"{family}.gguf") for family, model in models.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_a_converted_file_are_transformers(family: str, made: dict[str, tuple[Any, Path]]) -> None:
    hf, path = made[family]
    ids, backend = prompt(25), CpuBackend(1)
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), backend)
        found = model.forward(ids, model.new_cache(ids.size, "f32", "f32"), experts, "prefill", "all")
    expected = hf_logits(hf, ids)
    assert np.abs(found - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()
