"""Metadata keys that some architectures have in common beside those that all have; `models.config_table` puts them
together.
"""

from __future__ import annotations

from models.config_keys import COMMON, NEUTRAL, Key, ratio, without

SHARED_WIDTH = Key(
    "expert_shared_feed_forward_length",
    int,
    lambda v: v["shared_experts"] * v["moe_intermediate_size"],
    "expert_shared_count times an expert's width",
)
FEED_FORWARD_SHARED_WIDTH = Key(
    "expert_shared_feed_forward_length", int, lambda v: v["feed_forward_length"], "feed_forward_length"
)
QWEN_WIDTH = Key(
    "expert_feed_forward_length",
    int,
    lambda v: ratio(v["feed_forward_length"], v["num_experts_per_tok"]),
    "feed_forward_length / expert_used_count",
)
UNUSED_LAYERS = Key("nextn_predict_layers", int, 0, "none", lambda _: False)

# Ungated shared experts, and first layers that are dense.
UNGATED: dict[str, Key] = {
    "leading_dense": Key("leading_dense_block_count", int, 0, "experts in every layer"),
    "shared_experts": Key("expert_shared_count", int, 0, "no shared expert"),
}
UNGATED_NEUTRAL = without(NEUTRAL, "expert_shared_count", "leading_dense_block_count")

# The same, where experts are scored by sigmoid.
SHARED: dict[str, Key] = {**UNGATED, "gating": Key("expert_gating_func", int, 2, "the architecture's sigmoid")}

LATENT: dict[str, Key] = {
    "q_lora_rank": Key("attention.q_lora_rank", int, 0, "queries are projected directly"),
    "kv_lora_rank": Key("attention.kv_lora_rank", int),
    "mla_key_length": Key("attention.key_length_mla", int, lambda v: v["head_dim"], "attention.key_length"),
    "mla_value_length": Key("attention.value_length_mla", int, lambda v: v["value_dim"], "attention.value_length"),
    "yarn_log_multiplier": Key("rope.scaling.yarn_log_multiplier", float, 0.0, "no factor on the softmax"),
}

DEEPSEEK2 = (
    COMMON
    | LATENT
    | UNGATED
    | {
        "unused_layers": UNUSED_LAYERS,
        "norm_topk_prob": Key("expert_weights_norm", bool, False, "DeepSeek-V2's rule"),
        "gating": Key(
            "expert_gating_func",
            int,
            lambda v: 2 if v["has_selection_bias"] else 1,
            "sigmoid where the file has a selection bias, else softmax",
        ),
    }
)

# Qwen3-Next and Qwen3.5: attention in every fourth layer, gated delta nets in the others.
HYBRID: dict[str, Key] = {
    **COMMON,
    "feed_forward_length": Key("feed_forward_length", int, 0, "every layer has experts", lambda _: False),
    "moe_intermediate_size": QWEN_WIDTH,
    "shared_intermediate_size": FEED_FORWARD_SHARED_WIDTH,
    "unused_layers": UNUSED_LAYERS,
    "recurrent_layers": Key("attention.recurrent_layers", bool, (), "", lambda _: False, per_layer=True),
    "full_attention_interval": Key(
        "full_attention_interval", int, 4, "llama.cpp's default", lambda v: v["recurrent_layers"] == ()
    ),
    "ssm_conv_kernel": Key("ssm.conv_kernel", int),
    "ssm_inner_size": Key("ssm.inner_size", int),
    "ssm_state_size": Key("ssm.state_size", int),
    "ssm_heads": Key("ssm.time_step_rank", int),
    "ssm_key_heads": Key("ssm.group_count", int),
    "n_rot": Key("rope.dimension_count", int),
}
HYBRID_NEUTRAL = without(NEUTRAL, "expert_shared_feed_forward_length", "nextn_predict_layers")

# Granite's constant factors, and its shared expert without a gate.
GRANITE: dict[str, Key] = {
    **COMMON,
    "shared_intermediate_size": Key("expert_shared_feed_forward_length", int, 0, "no shared expert"),
    "attention_scale": Key("attention.scale", float, 0.0, "head width^-0.5"),
    "embedding_scale": Key("embedding_scale", float, 1.0, "no scaling"),
    "residual_scale": Key("residual_scale", float, 1.0, "no scaling"),
    "logit_divisor": Key("logit_scale", float, 1.0, "no scaling"),
}
GRANITE_NEUTRAL = without(
    NEUTRAL,
    "attention.scale",
    "embedding_scale",
    "expert_shared_feed_forward_length",
    "logit_scale",
    "residual_scale",
)

# Text has one position for all three axes of this rotation, so its sections mean nothing here.
SECTIONS: dict[str, Key] = {
    "rope_sections": Key("rope.dimension_sections", int, (), "", lambda _: False, per_layer=True)
}
