"""What a `config.json` of Mellum 2 says beside the sizes that all have: which layers have a sliding window, and a
rotation for each of the two kinds.
"""

from __future__ import annotations

from typing import Any

from convert.hf_rope import read_rope_scaling
from convert.hf_values import HfValues

_WINDOW, _FULL = "sliding_attention", "full_attention"


def mellum_fields(config: HfValues) -> dict[str, Any]:
    """Fields of `ModelDims`. Raises CheckpointError, UnsupportedError."""
    config.require("attention_bias", False)
    layers = config.integer("num_hidden_layers")
    config.require("mlp_layer_types", ["sparse"] * layers)
    kinds = config.layer_types(_WINDOW, _FULL, default=[_FULL] * layers)
    window, full = config.rope_of(_WINDOW), config.rope_of(_FULL)
    window.require("rope_type", "default")
    theta, scaled = full.real("rope_theta"), HfValues.of(config, {"rope_parameters": full.values})
    return {
        "qk_norm": "head",
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "norm_topk_prob": config.flag("norm_topk_prob"),
        "sliding_window": config.integer("sliding_window"),
        "window_layers": tuple(kind == _WINDOW for kind in kinds),
        "window_theta": window.real("rope_theta"),
        "rope_theta": theta,
        "rope_scaling": read_rope_scaling(scaled, "mellum", lambda: config.integer("head_dim"), theta),
    }
