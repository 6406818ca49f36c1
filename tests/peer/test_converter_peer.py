"""Tiny models through llama.cpp's own converter, where $PEARL_LLAMA_CONVERTER says where its convert_hf_to_gguf.py is:
pearl runs the file with the logits of transformers, and llama.cpp continues it with pearl's greedy text.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kernels.cpu.backend import CpuBackend
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from tests.peer import peer_models
from tests.peer.llama_cpp_peer import find_peer
from tests.peer.peer_models import END, N_NEW, PROMPT, VOCAB, our_continuation, printable, save_with_tokenizer
from tests.peer.test_greedy_peer import COMPUTED_OTHERWISE
from tests.tiny_models import FAMILIES, hf_logits, prompt, tiny_model
from tests.tiny_others import FAMILIES as OTHERS
from tests.tiny_seeing import as_published
from tests.tolerances import LOGITS_RELATIVE

CONVERTER, PEER = os.environ.get("PEARL_LLAMA_CONVERTER"), find_peer()
RUNNER = Path(__file__).with_name("run_converter.py")
PREDICTING = ("qwen3next", "qwen35moe")  # their folders may hold a layer for predicting several tokens at once
CASES = (*FAMILIES, *(f"{family}+mtp" for family in PREDICTING))
FIELDS = peer_models.FIELDS | {
    "afmoe": {"route_norm": True, "score_func": "sigmoid"},  # as published; transformers keeps no such field
    "deepseek2_v3": {"scoring_func": "sigmoid"},
    "deepseek2_lite": {"first_k_dense_replace": 1, "scoring_func": "sigmoid"},
    "dots1": {"scoring_func": "sigmoid"},
    "exaone-moe": {"scoring_func": "sigmoid"},
    "hy_v3": {"route_norm": True},
    "hunyuan-moe": {  # the converter knows this alpha, this width of a head and lists for the layers only
        "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128,
        "max_position_embeddings": 32768, "moe_topk": [2, 2], "moe_intermediate_size": [32, 32],
        "num_shared_expert": [1, 1],
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    },
    "lfm2moe": {"tie_word_embeddings": True, "routed_scaling_factor": 1.0},  # the converter knows no other
    "minimax-m2": {"rotary_dim": 12, "scoring_func": "sigmoid"},
    "phimoe": {  # the factor on cos and sin it computes itself, from the lengths
        "rope_parameters": OTHERS["phimoe"][2]["rope_parameters"] | {"short_mscale": 2**0.5, "long_mscale": 2**0.5}
    },
}  # fmt: skip
# Spellings of published configs, where the converter knows no other.
AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "granitehybrid": {"layer_types": ["mamba", "attention", "mamba", "mamba"]},
    "phimoe": {"architectures": ["PhiMoEForCausalLM"]},
}

pytestmark = pytest.mark.skipif(CONVERTER is None, reason="no $PEARL_LLAMA_CONVERTER: no converter to compare with")


def save(case: str, model: Any, folder: Path) -> list[str]:
    """Writes what the converter reads; returns its flags."""
    save_with_tokenizer(model, folder)
    if case.endswith("+mtp"):
        add_predicting_layer(folder / "model.safetensors")
    if case == "qwen3vlmoe":
        as_published(folder)
    if case in AS_PUBLISHED:
        settings = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(settings | AS_PUBLISHED[case]))
    return ["--no-mtp"] if case in PREDICTING else []


def add_predicting_layer(weights: Path) -> None:
    """The `mtp.*` tensors that published folders hold: an attention layer like layer 2, and what feeds it."""
    tensors = load_file(weights)
    prefix = next(name for name in tensors if name.endswith("layers.2.input_layernorm.weight")).split("layers.2.")[0]
    norm = tensors[f"{prefix}norm.weight"]
    own = {
        name.replace(f"{prefix}layers.2.", "mtp.layers.0."): values
        for name, values in tensors.items()
        if name.startswith(f"{prefix}layers.2.")
    }
    own |= {f"mtp.{name}.weight": norm for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    own["mtp.fc.weight"] = np.zeros((norm.size, 2 * norm.size), np.float32)
    save_file(tensors | own, weights, {"format": "pt"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """Of each case the model and the file that the converter made, all in one process."""
    folder = tmp_path_factory.mktemp("converter")
    models, lines = {}, []
    for case in CASES:
        family = case.removesuffix("+mtp")
        models[case] = tiny_model(family, vocab_size=VOCAB, eos_token_id=END, **FIELDS.get(family, {}))
        lines.append(" ".join([f"{folder / case} {folder / case}.gguf", *save(case, models[case], folder / case)]))
    command = [sys.executable, str(RUNNER), str(CONVERTER)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return {case: (model, folder / f"{case}.gguf") for case, model in models.items()}


@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_converted_file_are_transformers(case: str, made: dict[str, tuple[Any, Path]]) -> None:
    hf, path = made[case]
    ids, backend = prompt(25), CpuBackend(1)
    with GGUFModel.open(path) as gguf:
        model = load_model(gguf, backend)
        experts = ResidentExperts(model, ExpertStore(gguf, model.config), backend)
        found = model.forward(ids, model.new_cache(ids.size, "f32", "f32"), experts, "prefill", "all")
    expected = hf_logits(hf, ids)
    assert np.abs(found - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()


@pytest.mark.skipif(PEER is None, reason="neither llama_cpp nor $PEARL_LLAMA_COMPLETION: no peer to compare with")
@pytest.mark.parametrize("case", [case for case in CASES if case not in COMPUTED_OTHERWISE])
def test_greedy_text_of_a_converted_file_is_the_peers(case: str, made: dict[str, tuple[Any, Path]]) -> None:
    assert PEER is not None
    _, path = made[case]
    tokenizer, ids, ours = our_continuation(path, N_NEW)
    assert printable(PEER.continuation(path, tokenizer, PROMPT, ids, N_NEW)) == printable(ours)
