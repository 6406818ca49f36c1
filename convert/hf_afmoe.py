"""What a `config.json` of Arcee's Trinity says beside the sizes that all have."""

from __future__ import annotations

from typing import Any

from convert.hf_values import HfValues
from convert.model_metadata import SIGMOID
from models.errors import UnsupportedError

_WINDOW, _FULL, _PERIOD = "sliding_attention", "full_attention", 4


def afmoe_fields(config: HfValues) -> dict[str, Any]:
    """Fields of `ModelDims`. Raises CheckpointError, UnsupportedError.

    A GGUF has no place for other layers without a window than every fourth, nor for a choice by groups.
    """
    config.require("attention_bias", False)
    config.require("score_func", "sigmoid")
    config.require("route_norm", True)
    for key in ("n_group", "topk_group", "num_expert_groups", "num_limited_groups"):
        config.require(key, 1)
    if config.flag("mup_enabled") is not True:
        raise UnsupportedError(f"{config.path}: mup_enabled must be true: a GGUF takes the embedding to be scaled")
    usual = [_WINDOW if (layer + 1) % _PERIOD else _FULL for layer in range(config.integer("num_hidden_layers"))]
    kinds = config.layer_types(_WINDOW, _FULL, default=usual)
    if kinds != usual or config.integer("global_attn_every_n_layers", default=_PERIOD) != _PERIOD:
        raise UnsupportedError(f"{config.path}: only every fourth layer may be {_FULL}, and all of them must be")
    return {
        "qk_norm": "head",
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "shared_experts": config.integer("num_shared_experts", default=2),
        "leading_dense": config.integer("num_dense_layers", default=1),
        "router_scale": config.real("route_scale", default=1.0),
        "norm_topk_prob": True,
        "gating": SIGMOID,
        "sliding_window": config.integer("sliding_window"),
        "output_gate": True,
    }
