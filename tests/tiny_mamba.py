"""The family of `tests.tiny_models` with Mamba-2 layers, Granite 4.0 H: its config, its random weights, and its GGUF
tensors by the rules of llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers

FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "granitehybrid": (
        transformers.GraniteMoeHybridConfig,
        transformers.GraniteMoeHybridForCausalLM,
        {
            "num_hidden_layers": 4,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "shared_intermediate_size": 48,
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.4,
            "logits_scaling": 3.0,
            "position_embedding_type": "nope",
            "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
            "mamba_n_heads": 4,
            "mamba_d_state": 24,
            "mamba_n_groups": 2,
            "mamba_d_conv": 4,
            "mamba_chunk_size": 8,
        },
    ),
}
NAMES = {
    "mamba.in_proj.weight": "ssm_in.weight",
    "mamba.conv1d.weight": "ssm_conv1d.weight",
    "mamba.conv1d.bias": "ssm_conv1d.bias",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.A_log": "ssm_a",
    "mamba.D": "ssm_d",
    "mamba.norm.weight": "ssm_norm.weight",
    "mamba.out_proj.weight": "ssm_out.weight",
}


def randomise(name: str, parameter: torch.Tensor) -> bool:
    """Fill a parameter that needs another distribution than the rest; False where it does not."""
    if not name.endswith("A_log"):
        return False
    parameter.normal_(-1.5, 1.0)  # heads that forget soon, and heads that hardly do
    return True


def mamba_metadata(config: Any) -> dict[str, Any]:
    return {
        "attention.head_count_kv": [
            0 if kind == "linear_attention" else config.num_key_value_heads for kind in config.layer_types
        ],
        "rope.scaling.finetuned": config.position_embedding_type == "rope",
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.group_count": config.mamba_n_groups,
        "ssm.time_step_rank": config.mamba_n_heads,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
    }


def mamba_tensors(blk: str, rest: str, array: np.ndarray, config: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF name, array) of one tensor of a Mamba-2 layer."""
    if rest == "mamba.A_log":
        array = -np.exp(array)
    if rest == "mamba.conv1d.weight":
        array = array[:, 0]
    if rest in ("mamba.A_log", "mamba.D"):
        array = array[:, None]
    if rest == "mamba.norm.weight":
        array = array.reshape(config.mamba_n_groups, -1)
    yield f"{blk}.{NAMES[rest]}", array
