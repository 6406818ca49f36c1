"""What a `config.json` of the Qwen families says beside the sizes that all have: fields of `ModelDims`. Of models that
see, the text half is read.

Each raises CheckpointError for values of a wrong type, UnsupportedError for what pearl does not compute.
"""

from __future__ import annotations

from typing import Any

from convert.hf_rope import rotated_components
from convert.hf_values import HfValues
from models.config_recurrent import DeltaNetConfig
from models.errors import UnsupportedError

Fields = dict[str, Any]


def qwen3_fields(config: HfValues) -> Fields:
    """Qwen3 with experts in every layer."""
    config.require("mlp_only_layers", [])
    config.require("decoder_sparse_step", 1)
    return {
        "qk_norm": "head",
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "norm_topk_prob": config.flag("norm_topk_prob"),
    }


def qwen2_fields(config: HfValues) -> Fields:
    """Qwen1.5 and Qwen2 with experts."""
    config.require("qkv_bias", True)
    return {
        **qwen3_fields(config),
        "qk_norm": "none",
        "attention_bias": True,
        "shared_intermediate_size": config.integer("shared_expert_intermediate_size"),
    }


def qwen3_next_fields(config: HfValues) -> Fields:
    """Qwen3-Next: most layers have a delta net in attention's place."""
    config.require("attention_bias", False)
    layers = _recurrent_layers(config)
    heads, key_heads = config.integer("linear_num_value_heads"), config.integer("linear_num_key_heads")
    net = DeltaNetConfig(
        layers=layers,
        conv_kernel=config.integer("linear_conv_kernel_dim"),
        num_key_heads=key_heads,
        num_heads=heads,
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
    )
    if not key_heads or heads % key_heads or net.conv_kernel < 2:
        raise UnsupportedError(f"{config.path}: {heads} value heads over {key_heads} key heads are not possible")
    return {
        **qwen3_fields(config),
        "n_rot": rotated_components(config, 0.25),
        "shared_intermediate_size": config.integer("shared_expert_intermediate_size"),
        "delta_net": net,
    }


def qwen3_5_fields(config: HfValues) -> Fields:
    """Qwen3.5 and 3.6 with experts."""
    return {**qwen3_next_fields(config), "rope_sections": _rope_sections(config, [11, 11, 10])}


def qwen3_vl_fields(config: HfValues) -> Fields:
    """Qwen3-VL with experts; pictures enter the first layers, whose number is kept for programs that see."""
    config.require("attention_bias", False)
    vision = config.values.get("vision_config")
    seen = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    return {
        **qwen3_fields(config),
        "rope_sections": _rope_sections(config, [24, 20, 20]),
        "deepstack_layers": len(seen) if isinstance(seen, list) else None,
    }


def _rope_sections(config: HfValues, default: list[int]) -> tuple[int, ...]:
    """Components that rotate with each axis of a picture, which a GGUF takes to lie in turn."""
    HfValues.of(config, config.rope()).require("mrope_interleaved", True)
    return config.rope_sections(default)


def _recurrent_layers(config: HfValues) -> tuple[bool, ...]:
    """Which layers have a delta net: as listed, or all but every fourth."""
    if config.values.get("layer_types") is None:
        interval = config.integer("full_attention_interval", default=4)
        return tuple((layer + 1) % max(interval, 1) != 0 for layer in range(config.integer("num_hidden_layers")))
    return tuple(kind == "linear_attention" for kind in config.layer_types("linear_attention", "full_attention"))
