"""What a `config.json` of Hunyuan-A13B says beside the sizes that all have: much of it once for each layer."""

from __future__ import annotations

from typing import Any

from convert.hf_rope import fixed_alpha
from convert.hf_values import HfValues

# Trained for by the alpha of the published weights, whatever max_position_embeddings says beside it.
_ALPHA, _CONTEXT = 1000.0, 1 << 18


def hunyuan_fields(config: HfValues) -> dict[str, Any]:
    """Fields of `ModelDims`. Raises CheckpointError, UnsupportedError."""
    config.require("attention_bias", False)
    config.require("mlp_bias", False)
    config.require("use_qk_norm", True)
    config.require("use_cla", False)
    config.require("use_mla", False)
    config.require("use_mixed_mlp_moe", True)
    config.require("group_limited_greedy", False)
    config.require("moe_layer_num_skipped", 0)
    width, shared = config.integer("intermediate_size"), config.integer_of_layers("num_shared_expert", default=1)
    return {
        "qk_norm": "head",
        "moe_intermediate_size": config.integer_of_layers("moe_intermediate_size", default=width),
        "shared_experts": shared,
        "shared_intermediate_size": width * shared or None,
        "context_length": _context(config),
    }


def _context(config: HfValues) -> int:
    stated = config.integer("max_position_embeddings")
    if fixed_alpha(config) != _ALPHA or stated >= _CONTEXT:
        return stated
    config.notes.append(f"max_position_embeddings is {stated}; with rope alpha {_ALPHA:g} the context is {_CONTEXT}")
    return _CONTEXT
