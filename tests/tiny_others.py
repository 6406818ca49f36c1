"""More families of `tests.tiny_models`, each with what it calls and keeps otherwise than the rest: Gemma 4, gpt-oss,
LFM2 with experts, Phi-3.5-MoE.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import transformers

Named = list[tuple[str, np.ndarray]]
"""GGUF names without the leading `blk.N.`, and arrays in numpy order."""

FAMILIES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "gpt-oss": (
        transformers.GptOssConfig,
        transformers.GptOssForCausalLM,
        {
            "num_hidden_layers": 3,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 40,
            "head_dim": 24,
            "sliding_window": 6,
            "rope_parameters": {
                "rope_theta": 150000.0,
                "rope_type": "yarn",
                "factor": 8.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "gemma4": (
        transformers.Gemma4TextConfig,
        transformers.Gemma4ForCausalLM,
        {
            "num_hidden_layers": 4,
            "head_dim": 24,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 32,
            "intermediate_size": 48,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 3.0,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            },
        },
    ),
    "phimoe": (
        transformers.PhimoeConfig,
        transformers.PhimoeForCausalLM,
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "attention_bias": True,
            "lm_head_bias": True,
            "rope_parameters": {
                "rope_theta": 10000.0,
                "rope_type": "longrope",
                "factor": 16.0,
                "original_max_position_embeddings": 16,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0],
                "short_mscale": 1.2,
                "long_mscale": 1.2,
            },
        },
    ),
    "lfm2moe": (
        transformers.Lfm2MoeConfig,
        transformers.Lfm2MoeForCausalLM,
        {
            "num_hidden_layers": 4,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 80,
            "moe_intermediate_size": 32,
            "num_dense_layers": 1,
            "norm_eps": 1e-5,
            "conv_L_cache": 4,
            "routed_scaling_factor": 1.5,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ),
}


def _gpt_oss_metadata(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    keys = {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "expert_feed_forward_length": config.intermediate_size,
    }
    if rope["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": rope["beta_fast"],
            "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        }
    return keys


def _gpt_oss_tensors(rest: str, array: np.ndarray) -> Named:
    """gpt-oss keeps [E, inputs, outputs], and gate and up in turn along the outputs."""
    if rest == "self_attn.sinks":
        return [("attn_sinks.weight", array)]
    linears = _GPT_OSS_EXPERTS.get(rest, ())
    kind = "bias" if rest.endswith("bias") else "weight"
    rows = array if kind == "bias" else array.swapaxes(1, 2) if linears else array
    return [(f"ffn_{linear}_exps.{kind}", rows[:, part :: len(linears)]) for part, linear in enumerate(linears)]


_GPT_OSS_EXPERTS = {
    "mlp.experts.gate_up_proj": ("gate", "up"),
    "mlp.experts.gate_up_proj_bias": ("gate", "up"),
    "mlp.experts.down_proj": ("down",),
    "mlp.experts.down_proj_bias": ("down",),
}


def _lfm2_metadata(config: Any) -> dict[str, Any]:
    heads = [0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types]
    return {
        "attention.head_count_kv": heads,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "leading_dense_block_count": config.num_dense_layers,
        "expert_gating_func": 2,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "shortconv.l_cache": config.conv_L_cache,
    }


_LFM2_NAMES = {
    "operator_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "conv.conv.weight": "shortconv.conv.weight",
    "conv.in_proj.weight": "shortconv.in_proj.weight",
    "conv.out_proj.weight": "shortconv.out_proj.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
    "self_attn.q_layernorm.weight": "attn_q_norm.weight",
    "self_attn.k_layernorm.weight": "attn_k_norm.weight",
    "feed_forward.gate.weight": "ffn_gate_inp.weight",
    "feed_forward.w1.weight": "ffn_gate.weight",
    "feed_forward.w2.weight": "ffn_down.weight",
    "feed_forward.w3.weight": "ffn_up.weight",
}


def _lfm2_tensors(rest: str, array: np.ndarray) -> Named:
    if rest == "conv.conv.weight":  # [channels, 1, K]
        array = array[:, 0]
    return [(_LFM2_NAMES[rest], array)] if rest in _LFM2_NAMES else []


def _gemma4_metadata(config: Any) -> dict[str, Any]:
    windows = [kind == "sliding_attention" for kind in config.layer_types]
    full = config.per_layer_config["full_attention"]
    kv_heads = [config.num_key_value_heads if window else full.num_key_value_heads for window in windows]
    return {
        "attention.head_count_kv": kv_heads,
        "attention.key_length": full.head_dim,
        "attention.value_length": full.head_dim,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": windows,
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "rope.dimension_count": full.head_dim,
        "rope.dimension_count_swa": config.head_dim,
        "rope.freq_base": config.rope_parameters["full_attention"]["rope_theta"],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    } | ({"final_logit_softcapping": config.final_logit_softcapping} if config.final_logit_softcapping else {})


_GEMMA4_NAMES = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}


def _gemma4_tensors(rest: str, array: np.ndarray) -> Named:
    return [(_GEMMA4_NAMES[rest], array)] if rest in _GEMMA4_NAMES else []


def _gemma4_outer(config: Any) -> Named:
    """Divisors of the frequencies: components that the full layers do not turn are turned endlessly slowly."""
    full = config.per_layer_config["full_attention"]
    n_turned = int(config.rope_parameters["full_attention"]["partial_rotary_factor"] * full.head_dim) // 2
    divisors = np.full(full.head_dim // 2, 1e30, np.float32)
    divisors[:n_turned] = 1.0
    return [("rope_freqs.weight", divisors)]


def choose_factors_by_length(model: Any) -> None:
    """Let a Phi model divide its frequencies by the long list for sequences beyond the original context, as the code
    that came with its weights does; transformers 5.24 takes the short list for all and only changes the factor.
    """
    rotary = model.model.rotary_emb
    if rotary.rope_type == "default":
        return
    frequencies, forward = rotary.rope_init_fn, rotary.forward

    def by_length(x: Any, position_ids: Any) -> Any:
        rotary.rope_init_fn = partial(frequencies, seq_len=int(position_ids.max()) + 1)
        return forward(x, position_ids)

    rotary.forward = by_length


def _llama3_outer(config: Any) -> Named:
    """Llama 3's scaling as a file holds it: divisors of the frequencies, 1 for fast ones, the factor for slow ones."""
    rope = config.rope_parameters
    if rope["rope_type"] != "llama3":
        return []
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((rope["original_max_position_embeddings"] / waves - low) / (high - low), 0.0, 1.0)
    return [("rope_freqs.weight", (1.0 / (smooth + (1.0 - smooth) / rope["factor"])).astype(np.float32))]


def _phimoe_metadata(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        return {}
    return {
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.attn_factor": rope["short_mscale"],
    }


def _phimoe_outer(config: Any) -> Named:
    rope = config.rope_parameters
    lists = {kind: rope.get(f"{kind}_factor") for kind in ("short", "long")}
    return [(f"rope_factors_{kind}.weight", np.array(v, np.float32)) for kind, v in lists.items() if v]


METADATA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "gemma4": _gemma4_metadata,
    "gpt-oss": _gpt_oss_metadata,
    "lfm2moe": _lfm2_metadata,
    "phimoe": _phimoe_metadata,
}
TENSORS: dict[str, Callable[[str, np.ndarray], Named]] = {
    "gemma4": _gemma4_tensors,
    "gpt-oss": _gpt_oss_tensors,
    "lfm2moe": _lfm2_tensors,
}
OUTER: dict[str, Callable[[Any], Named]] = {
    "exaone-moe": _llama3_outer,
    "gemma4": _gemma4_outer,
    "granitemoe": _llama3_outer,
    "llama": _llama3_outer,
    "phimoe": _phimoe_outer,
}
