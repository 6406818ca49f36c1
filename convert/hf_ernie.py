"""What a `config.json` of ERNIE 4.5 says beside the sizes that all have. Folders in the layout of Paddle, with joined
and transposed matrices, are not read.
"""

from __future__ import annotations

from typing import Any

from convert.hf_values import HfValues


def ernie_fields(config: HfValues) -> dict[str, Any]:
    """Fields of `ModelDims`. Raises CheckpointError, UnsupportedError.

    Experts must be in every layer from the first that has them: a GGUF has no place for a last one.
    """
    config.require("use_bias", False)
    config.require("moe_gate", "topk")
    config.require("moe_gate_act", "softmax")
    config.require("moe_norm_gate_logits", True)
    config.require("moe_use_aux_free", True)  # the bias that enters the choice
    config.require("moe_layer_interval", 1)
    config.require("moe_layer_end_index", -1, config.integer("num_hidden_layers") - 1)
    width, shared = config.integer("moe_intermediate_size"), config.integer("moe_num_shared_experts", default=2)
    return {
        "moe_intermediate_size": width,
        "shared_experts": shared,
        "shared_intermediate_size": shared * width or None,
        "leading_dense": config.integer("moe_layer_start_index", default=1),
    }
