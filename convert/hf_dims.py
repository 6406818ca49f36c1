"""What a `config.json` of each architecture says beside the sizes that all have: fields of `ModelDims`.

Spellings and rules are those of transformers' configuration classes and, where these are newer than the checkpoints,
of the checkpoints' own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convert.hf_afmoe import afmoe_fields
from convert.hf_ernie import ernie_fields
from convert.hf_gemma4 import gemma4_fields
from convert.hf_granite import granite_fields, granite_hybrid_fields
from convert.hf_hunyuan import hunyuan_fields
from convert.hf_mellum import mellum_fields
from convert.hf_qwen import qwen2_fields, qwen3_5_fields, qwen3_fields, qwen3_next_fields, qwen3_vl_fields
from convert.hf_rope import rotated_components
from convert.hf_values import HfValues
from convert.model_metadata import SIGMOID, SOFTMAX, LatentDims
from models.errors import CheckpointError, UnsupportedError

Fields = dict[str, Any]


def architecture_fields(config: HfValues, architecture: str, model_class: str) -> Fields:
    """The fields of `ModelDims` that only `architecture` has, or has otherwise than `common`.

    Raises CheckpointError for values of a wrong type, UnsupportedError for what pearl does not compute.
    """
    if architecture == "deepseek2":
        return _deepseek(config, model_class != "DeepseekV2ForCausalLM")
    return _FIELDS[architecture](config)


def _olmoe(config: HfValues) -> Fields:
    return {"qk_norm": "full", "norm_topk_prob": config.flag("norm_topk_prob")}


def _llama(config: HfValues) -> Fields:
    return {"sliding_window": config.optional_integer("sliding_window") or None}


def _gpt_oss(config: HfValues) -> Fields:
    config.require("attention_bias", True)
    config.require("swiglu_alpha", 1.702)
    if not config.rope():
        raise CheckpointError(f"{config.path}: rope_scaling is missing")
    window, full = "sliding_attention", "full_attention"
    usual = [full if layer % 2 else window for layer in range(config.integer("num_hidden_layers"))]
    kinds = config.layer_types(window, full, default=usual)
    return {
        "attention_bias": True,
        "output_bias": True,
        "sinks": True,
        "expert_biases": True,
        "sliding_window": config.integer("sliding_window"),
        "window_layers": None if kinds == usual else tuple(kind == window for kind in kinds),
        "swiglu_limit": config.real("swiglu_limit", default=7.0),
    }


def _lfm2(config: HfValues) -> Fields:
    config.require("conv_bias", False)
    config.require("use_expert_bias", True)
    return {
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "leading_dense": config.integer("num_dense_layers", default=2),
        "router_scale": config.real("routed_scaling_factor", default=1.0),
        "norm_topk_prob": _norm(config, True),
        "gating": SIGMOID,
        "qk_norm": "head",
        "conv_kernel": config.integer("conv_L_cache", default=3),
        "conv_layers": tuple(kind == "conv" for kind in config.layer_types("conv", "full_attention")),
    }


def _phimoe(config: HfValues) -> Fields:
    config.require("num_experts_per_tok", 2)
    config.require("router_jitter_noise", 0.01)
    biased = bool(config.flag("attention_bias"))
    return {
        "attention_bias": biased,
        "output_bias": biased,
        "norm_biases": True,
        "logit_bias": bool(config.flag("lm_head_bias")),
        "sliding_window": config.optional_integer("sliding_window") or None,
    }


def _glm4(config: HfValues) -> Fields:
    groups = _groups(config)
    return {
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "qk_norm": "head" if config.flag("use_qk_norm") else "none",
        "attention_bias": bool(config.flag("attention_bias")),
        "n_rot": rotated_components(config, 0.5),
        "gating": SIGMOID,
        **groups,
        "norm_topk_prob": _norm(config, True),
        "rope_sections": config.rope_sections() if "mrope_section" in config.rope() else None,  # of GLM-4.5V
        **_shared(config),
    }


def _minimax(config: HfValues) -> Fields:
    config.require("scoring_func", "sigmoid")
    config.require("use_routing_bias", True)
    config.require("use_qk_norm", True)
    config.require("qk_norm_type", "per_layer")
    config.require("attention_bias", False)
    config.require("attn_type_list", [1] * config.integer("num_hidden_layers"))
    config.require("shared_intermediate_size", 0)
    n_rot = config.optional_integer("rotary_dim") or rotated_components(config, 0.5)
    return {"qk_norm": "full", "n_rot": n_rot, "gating": SIGMOID, "norm_topk_prob": True}


def _dots(config: HfValues) -> Fields:
    config.require("attention_bias", False)
    config.require("scoring_func", "sigmoid")
    config.require("topk_method", "noaux_tc")
    config.require("moe_layer_freq", 1)
    config.layer_types("full_attention", default=["full_attention"] * config.integer("num_hidden_layers"))
    groups = _groups(config)
    return {
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "qk_norm": "head",
        "gating": SIGMOID,
        **groups,
        "norm_topk_prob": _norm(config, False),
        **_shared(config),
    }


def _hy3(config: HfValues) -> Fields:
    config.require("attention_bias", False)
    config.require("mlp_bias", False)
    config.require("route_norm", True)
    width, shared = config.integer("moe_intermediate_size"), config.integer("num_shared_experts", default=1)
    return {
        "moe_intermediate_size": width,
        "qk_norm": "head",
        "gating": SIGMOID,
        "norm_topk_prob": True,
        "shared_experts": shared,
        "shared_intermediate_size": shared * width or None,
        "leading_dense": _leading_dense(config),
        "router_scale": config.real("router_scaling_factor", default=2.826),
    }


def _exaone(config: HfValues) -> Fields:
    config.require("scoring_func", "sigmoid")
    config.require("sliding_window_pattern", 4, "LLLG")
    layers, window, full = config.integer("num_hidden_layers"), "sliding_attention", "full_attention"
    usual = [window if (layer + 1) % 4 and layer + 1 < layers else full for layer in range(layers)]
    width, shared = config.integer("moe_intermediate_size"), config.integer("num_shared_experts", default=1)
    groups = _groups(config)
    return {
        "moe_intermediate_size": width,
        "qk_norm": "head",
        "gating": SIGMOID,
        **groups,
        "norm_topk_prob": _norm(config, True),
        "shared_experts": shared,
        "shared_intermediate_size": shared * width or None,
        "leading_dense": _leading_dense(config),
        "router_scale": config.real("routed_scaling_factor", default=2.5),
        "sliding_window": config.integer("sliding_window"),
        "window_layers": tuple(kind == window for kind in config.layer_types(window, full, default=usual)),
    }


def _deepseek(config: HfValues, is_v3: bool) -> Fields:
    config.require("attention_bias", False)
    config.require("mlp_bias", False)
    config.require("moe_layer_freq", 1)
    config.require("rope_interleave", True)
    config.require("scoring_func", "sigmoid" if is_v3 else "softmax")
    config.require("topk_method", *(("noaux_tc",) if is_v3 else ("greedy", "group_limited_greedy")))
    grouped = is_v3 or config.values.get("topk_method") == "group_limited_greedy"
    groups = _groups(config) if grouped else {}
    latent = LatentDims(
        q_lora_rank=config.optional_integer("q_lora_rank") or 0,
        kv_lora_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim"),
    )
    return {
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "num_kv_heads": 1,
        "head_dim": latent.kv_lora_rank + latent.rope_dim,
        "latent": latent,
        "gating": SIGMOID if is_v3 else SOFTMAX,
        **groups,
        "norm_topk_prob": _norm(config, is_v3),
        **_shared(config),
    }


def _shared(config: HfValues) -> Fields:
    return {
        "shared_experts": config.optional_integer("n_shared_experts") or 0,
        "leading_dense": _leading_dense(config),
        "router_scale": config.real("routed_scaling_factor", default=1.0),
    }


def _groups(config: HfValues) -> Fields:
    """The choice among groups of experts, where there is more than one."""
    groups = config.integer("n_group", default=1)
    return {"num_groups": groups, "num_groups_used": config.integer("topk_group")} if groups > 1 else {}


def _leading_dense(config: HfValues) -> int:
    """First layers without experts: their number, or the kinds of all layers."""
    kinds = config.values.get("mlp_layer_types")
    if kinds is None:
        return config.integer("first_k_dense_replace", default=0)
    n_layers = config.integer("num_hidden_layers")
    first = kinds.index("sparse") if isinstance(kinds, list) and "sparse" in kinds else n_layers
    if kinds != ["dense"] * first + ["sparse"] * (n_layers - first):
        raise UnsupportedError(f"{config.path}: mlp_layer_types is not {n_layers} layers, first dense and then sparse")
    return first


def _norm(config: HfValues, default: bool) -> bool:
    norm = config.flag("norm_topk_prob")
    return config.default("norm_topk_prob", default) if norm is None else norm


_FIELDS: dict[str, Callable[[HfValues], Fields]] = {
    "afmoe": afmoe_fields,
    "dots1": _dots,
    "ernie4_5-moe": ernie_fields,
    "exaone-moe": _exaone,
    "gemma4": gemma4_fields,
    "glm4moe": _glm4,
    "gpt-oss": _gpt_oss,
    "granitehybrid": granite_hybrid_fields,
    "granitemoe": granite_fields,
    "hunyuan-moe": hunyuan_fields,
    "hy_v3": _hy3,
    "lfm2moe": _lfm2,
    "llama": _llama,
    "mellum": mellum_fields,
    "minimax-m2": _minimax,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "qwen2moe": qwen2_fields,
    "qwen3moe": qwen3_fields,
    "qwen35moe": qwen3_5_fields,
    "qwen3next": qwen3_next_fields,
    "qwen3vlmoe": qwen3_vl_fields,
}
