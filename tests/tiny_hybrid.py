"""The hybrid families of `tests.tiny_models`, Qwen3-Next and Qwen3.5 with experts: configs, random weights, and their
GGUF tensors by the rules of llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers

ROPE = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
HYBRID = {
    "num_hidden_layers": 4,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "head_dim": 24,
    "rms_norm_eps": 1e-6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": ROPE,
}
FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "qwen3next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM, {**HYBRID, "intermediate_size": 96}),
    "qwen35moe": (
        transformers.Qwen3_5MoeTextConfig,
        transformers.Qwen3_5MoeForCausalLM,
        {**HYBRID, "rope_parameters": {**ROPE, "mrope_section": [2, 2, 2], "mrope_interleaved": True}},
    ),
}


def randomise(name: str, parameter: torch.Tensor) -> bool:
    """Fill a parameter that needs another distribution than the rest; False where it does not."""
    if name.endswith("A_log"):
        parameter.normal_(-1.5, 1.0)  # heads that forget at once, and heads that hardly do
    elif parameter.dim() == 1 and name.endswith("norm.weight") and "linear_attn" not in name:
        parameter.normal_(0.0, 0.3)  # these norms multiply by 1 + weight
    else:
        return False
    return True


def hybrid_metadata(config: Any, architecture: str) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        "full_attention_interval": 4,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config.layer_types],
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
    }
    return keys | ({"rope.dimension_sections": [2, 2, 2, 0]} if architecture == "qwen35moe" else {})


NAMES = {
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}


def delta_tensors(
    blk: str, rest: str, array: np.ndarray, config: Any, architecture: str, whole: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF name, array) of one tensor of a delta net. `whole`: the older layout, with `ssm_in`."""
    if rest == "linear_attn.in_proj_qkvz.weight":
        if whole:
            yield f"{blk}.ssm_in.weight", array
            return
        k, own = config.linear_key_head_dim, _values_of_a_key_head(config)
        groups = array.reshape(config.linear_num_key_heads, -1, array.shape[1])
        q, key, v, z = np.split(groups, np.cumsum([k, k, own]), axis=1)
        yield f"{blk}.attn_qkv.weight", np.concatenate([part.reshape(-1, array.shape[1]) for part in (q, key, v)])
        yield f"{blk}.attn_gate.weight", z.reshape(-1, array.shape[1])
        return
    if rest == "linear_attn.A_log":
        array = -np.exp(array)
    if rest == "linear_attn.conv1d.weight":
        array = array[:, 0]
    if architecture == "qwen35moe":
        array = _tiled(rest.split(".")[1], array, config)
    yield f"{blk}.{NAMES[rest]}", array


def _values_of_a_key_head(config: Any) -> int:
    return config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim


def _tiled(part: str, array: np.ndarray, config: Any) -> np.ndarray:
    """Value heads from the order of their key heads to going round the key heads: a0 a1 b0 b1 becomes a0 b0 a1 b1."""
    keys = config.linear_num_key_heads

    def turned(rows: np.ndarray, head: int) -> np.ndarray:
        return rows.reshape(keys, -1, head, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    value = config.linear_value_head_dim
    if part in ("in_proj_qkv", "conv1d"):
        first = 2 * keys * config.linear_key_head_dim
        return np.concatenate([array[:first], turned(array[first:], value)])
    if part == "in_proj_z":
        return turned(array, value)
    if part == "out_proj":
        return turned(array.T, value).T
    return array if part == "norm" else turned(array, 1)
