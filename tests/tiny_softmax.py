"""More families of `tests.tiny_models`, whose experts are scored by softmax: ERNIE 4.5 and Hunyuan, with ungated shared
ones, and Mellum 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import transformers

Named = list[tuple[str, np.ndarray]]
FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "ernie4_5-moe": (
        transformers.Ernie4_5_MoeConfig,
        transformers.Ernie4_5_MoeForCausalLM,
        {
            "num_hidden_layers": 3,
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_intermediate_size": 32,
            # llama.cpp's converter takes this divided by the key/value heads for the shared experts' width
            "intermediate_size": 128,
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
        },
    ),
    "mellum": (
        transformers.MellumConfig,
        transformers.MellumForCausalLM,
        {
            "num_hidden_layers": 3,
            "head_dim": 24,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "intermediate_size": 96,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            },
        },
    ),
    "hunyuan-moe": (
        transformers.HunYuanMoEV1Config,
        transformers.HunYuanMoEV1ForCausalLM,
        {
            "head_dim": 24,
            "num_experts": 5,
            "moe_topk": 2,
            "intermediate_size": 32,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
        },
    ),
}  # fmt: skip


def _ernie_metadata(config: Any) -> dict[str, Any]:
    keys = {
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.moe_num_shared_experts,
        "leading_dense_block_count": config.moe_layer_start_index,
        "interleave_moe_layer_step": config.moe_layer_interval,
    }
    if config.moe_num_shared_experts:
        keys["expert_shared_feed_forward_length"] = config.moe_num_shared_experts * config.moe_intermediate_size
    return keys


def _ernie_tensors(rest: str, array: np.ndarray) -> Named:
    if rest != "mlp.gate.moe_statics.e_score_correction_bias":  # [1, E]
        return []
    return [("exp_probs_b.bias", array[0])]


def _hunyuan_metadata(config: Any) -> dict[str, Any]:
    rope, d = config.rope_parameters, config.head_dim
    top_k = config.moe_topk
    return {
        "attention.key_length": d,
        "attention.value_length": d,
        "expert_used_count": top_k[0] if isinstance(top_k, list) else top_k,
        "expert_feed_forward_length": config.intermediate_size,
        "expert_shared_feed_forward_length": config.intermediate_size,
        "expert_shared_count": 1,
        "rope.freq_base": rope["rope_theta"] * rope.get("alpha", 1.0) ** (d / (d - 2)),
        "rope.scaling.type": "none",
    }


def _mellum_metadata(config: Any) -> dict[str, Any]:
    full, window = (config.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    keys = {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_norm": config.norm_topk_prob,
        "rope.freq_base": full["rope_theta"],
        "rope.freq_base_swa": window["rope_theta"],
    }
    if full["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": full["factor"],
            "rope.scaling.original_context_length": full["original_max_position_embeddings"],
        }
    return keys


_HUNYUAN_NAMES = {
    "self_attn.query_layernorm.weight": "attn_q_norm.weight",
    "self_attn.key_layernorm.weight": "attn_k_norm.weight",
    "mlp.gate.wg.weight": "ffn_gate_inp.weight",
    **{f"mlp.shared_mlp.{name}_proj.weight": f"ffn_{name}_shexp.weight" for name in ("gate", "up", "down")},
}


def _hunyuan_tensors(rest: str, array: np.ndarray) -> Named:
    return [(_HUNYUAN_NAMES[rest], array)] if rest in _HUNYUAN_NAMES else []


METADATA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "ernie4_5-moe": _ernie_metadata,
    "hunyuan-moe": _hunyuan_metadata,
    "mellum": _mellum_metadata,
}
TENSORS: dict[str, Callable[[str, np.ndarray], Named]] = {
    "ernie4_5-moe": _ernie_tensors,
    "hunyuan-moe": _hunyuan_tensors,
}
