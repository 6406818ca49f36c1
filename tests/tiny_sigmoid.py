"""More families of `tests.tiny_models`, whose experts are scored by sigmoid with a bias: MiniMax-M2, dots.llm1,
GLM-4.7-Flash, Trinity, K-EXAONE and Hy3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import transformers

FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "minimax-m2": (
        transformers.MiniMaxM2Config,
        transformers.MiniMaxM2ForCausalLM,
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "head_dim": 24,
            "rope_parameters": {"rope_theta": 5e6, "rope_type": "default", "partial_rotary_factor": 0.5},
        },
    ),
    "dots1": (
        transformers.Dots1Config,
        transformers.Dots1ForCausalLM,
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "head_dim": 24,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "n_group": 3,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 32,
            "intermediate_size": 80,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "sliding_window": None,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ),
    "afmoe": (
        transformers.AfmoeConfig,
        transformers.AfmoeForCausalLM,
        {
            "num_hidden_layers": 4,
            "head_dim": 24,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "num_shared_experts": 2,
            "num_dense_layers": 1,
            "moe_intermediate_size": 32,
            "intermediate_size": 80,
            "sliding_window": 6,
            "route_scale": 2.5,
            "mup_enabled": True,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ),
    "hy_v3": (
        transformers.HYV3Config,
        transformers.HYV3ForCausalLM,
        {
            "num_hidden_layers": 3,
            "head_dim": 24,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "num_shared_experts": 2,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "moe_intermediate_size": 32,
            "intermediate_size": 80,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        },
    ),
    "exaone-moe": (
        transformers.ExaoneMoeConfig,
        transformers.ExaoneMoeForCausalLM,
        {
            "num_hidden_layers": 4,
            "head_dim": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "num_shared_experts": 2,
            "n_group": 3,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 32,
            "intermediate_size": 80,
            "sliding_window": 6,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        },
    ),
    "deepseek2_lite": (
        transformers.Glm4MoeLiteConfig,
        transformers.Glm4MoeLiteForCausalLM,
        {
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "q_lora_rank": 40,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 8,
            "v_head_dim": 32,
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "moe_intermediate_size": 32,
            "intermediate_size": 80,
            "routed_scaling_factor": 1.8,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        },
    ),
}


def _latent_metadata(config: Any) -> dict[str, Any]:
    kinds = getattr(config, "mlp_layer_types", None)
    return {} if kinds is None else {"leading_dense_block_count": kinds.count("dense")}


def _minimax_metadata(config: Any) -> dict[str, Any]:
    return {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
        "expert_feed_forward_length": config.intermediate_size,
        "expert_gating_func": 2,
    }


def _dots_metadata(config: Any) -> dict[str, Any]:
    return {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": config.norm_topk_prob,
        "expert_gating_func": 2,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "leading_dense_block_count": config.first_k_dense_replace,
    }


def _hy3_metadata(config: Any) -> dict[str, Any]:
    return {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_intermediate_size * config.num_shared_experts,
        "expert_weights_scale": float(config.router_scaling_factor),
        "expert_weights_norm": True,
        "expert_gating_func": 2,
    }


def _exaone_metadata(config: Any) -> dict[str, Any]:
    return {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.num_shared_experts,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": config.norm_topk_prob,
        "expert_gating_func": 2,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "leading_dense_block_count": config.mlp_layer_types.count("dense"),
    }


def _afmoe_metadata(config: Any) -> dict[str, Any]:
    return {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.num_shared_experts,
        "expert_weights_scale": float(config.route_scale),
        "leading_dense_block_count": config.num_dense_layers,
    }


_AFMOE_NAMES = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_mlp_layernorm.weight": "ffn_norm.weight",
    "post_mlp_layernorm.weight": "post_ffw_norm.weight",
    "self_attn.gate_proj.weight": "attn_gate.weight",
    "mlp.router.gate.weight": "ffn_gate_inp.weight",
    "mlp.expert_bias": "exp_probs_b.bias",
}


def _afmoe_tensors(rest: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    return [(_AFMOE_NAMES[rest], array)] if rest in _AFMOE_NAMES else []


TENSORS = {"afmoe": _afmoe_tensors}
METADATA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "afmoe": _afmoe_metadata,
    "exaone-moe": _exaone_metadata,
    "hy_v3": _hy3_metadata,
    "deepseek2": _latent_metadata,
    "dots1": _dots_metadata,
    "minimax-m2": _minimax_metadata,
}
