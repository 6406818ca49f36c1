"""The metadata keys of each architecture: those of `models.config_keys` with its own, and with what it does otherwise.

A new architecture is one more entry in `ARCHITECTURES`.
"""

from __future__ import annotations

from models.config_groups import (
    DEEPSEEK2,
    FEED_FORWARD_SHARED_WIDTH,
    GRANITE,
    GRANITE_NEUTRAL,
    HYBRID,
    HYBRID_NEUTRAL,
    QWEN_WIDTH,
    SECTIONS,
    SHARED,
    SHARED_WIDTH,
    UNGATED,
    UNGATED_NEUTRAL,
    UNUSED_LAYERS,
)
from models.config_keys import COMMON, NEUTRAL, Architecture, Key, without

ARCHITECTURES: dict[str, Architecture] = {
    "afmoe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | SHARED
        | {
            "sliding_window": Key("attention.sliding_window", int),
            "embedding_scale": Key("embedding_scale", float, lambda v: v["hidden_size"] ** 0.5, "the architecture's"),
        },
        neutral=without(UNGATED_NEUTRAL, "embedding_scale"),
        window_period=4,
        rope_in_windows_only=True,
    ),
    "deepseek2": Architecture(
        rope_interleaved=True,
        fields=DEEPSEEK2,
        neutral=without(
            UNGATED_NEUTRAL,
            "attention.kv_lora_rank",
            "attention.q_lora_rank",
            "nextn_predict_layers",
            "rope.scaling.yarn_log_multiplier",
        ),
    ),
    "dots1": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | SHARED
        | {"norm_topk_prob": Key("expert_weights_norm", bool, False, "the architecture's rule")},
        neutral=UNGATED_NEUTRAL,
    ),
    "ernie4_5-moe": Architecture(
        rope_interleaved=True,
        fields=COMMON | UNGATED | {"shared_intermediate_size": SHARED_WIDTH},
        neutral=without(UNGATED_NEUTRAL, "expert_shared_feed_forward_length"),
    ),
    "exaone-moe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | SHARED
        | {
            "shared_intermediate_size": SHARED_WIDTH,
            "sliding_window": Key("attention.sliding_window", int),
            "unused_layers": UNUSED_LAYERS,
        },
        neutral=without(UNGATED_NEUTRAL, "expert_shared_feed_forward_length", "nextn_predict_layers"),
        window_period=4,
        rope_in_windows_only=True,
    ),
    "gemma4": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "num_kv_heads": Key("attention.head_count_kv", int, per_layer=True),
            "head_dim": Key("attention.key_length", int),
            "value_dim": Key("attention.value_length", int),
            "head_dim_window": Key("attention.key_length_swa", int),
            "value_dim_window": Key("attention.value_length_swa", int),
            "sliding_window": Key("attention.sliding_window", int),
            "moe_intermediate_size": Key("expert_feed_forward_length", int),
            "n_rot_window": Key(
                "rope.dimension_count_swa", int, lambda v: v["head_dim_window"], "attention.key_length_swa"
            ),
            "rope_theta_window": Key("rope.freq_base_swa", float, 10000.0, "llama.cpp's default"),
            "logit_softcap": Key("final_logit_softcapping", float, 0.0, "no cap"),
        },
        neutral=without(NEUTRAL, "final_logit_softcapping")
        | {"attention.shared_kv_layers": (0,), "embedding_length_per_layer_input": (0,)},
        window_period=6,
    ),
    "glm4moe": Architecture(
        rope_interleaved=False,
        fields=COMMON | SHARED | SECTIONS | {"unused_layers": Key("nextn_predict_layers", int, 0, "none")},
        neutral=without(UNGATED_NEUTRAL, "nextn_predict_layers"),
    ),
    "gpt-oss": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "sliding_window": Key("attention.sliding_window", int),
            "gating": Key("expert_gating_func", int, 3, "the architecture's softmax over the chosen"),
            "swiglu_limit": Key("swiglu_clamp_exp", float, 7.0, "gpt-oss's own"),
        },
        neutral=without(NEUTRAL, "swiglu_clamp_exp"),
        window_period=2,
        yarn_whole_components=False,
    ),
    "granitehybrid": Architecture(
        rope_interleaved=True,
        fields=GRANITE
        | {
            "num_kv_heads": Key("attention.head_count_kv", int, per_layer=True),
            "mamba_conv_kernel": Key("ssm.conv_kernel", int),
            "mamba_inner_size": Key("ssm.inner_size", int),
            "mamba_state_size": Key("ssm.state_size", int),
            "mamba_heads": Key("ssm.time_step_rank", int),
            "mamba_groups": Key("ssm.group_count", int),
            "rotates": Key("rope.scaling.finetuned", bool, True, "llama.cpp's default: attention knows positions"),
        },
        neutral=GRANITE_NEUTRAL,
    ),
    # In this architecture llama.cpp takes "not finetuned" for "no rotation at all".
    "granitemoe": Architecture(
        rope_interleaved=True, fields=GRANITE, neutral=GRANITE_NEUTRAL | {"rope.scaling.finetuned": (True,)}
    ),
    "hunyuan-moe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "shared_experts": Key("expert_shared_count", int, 1, "", lambda _: False),  # its width says all
            "shared_intermediate_size": FEED_FORWARD_SHARED_WIDTH,
        },
        neutral=without(NEUTRAL, "expert_shared_count", "expert_shared_feed_forward_length"),
    ),
    "hy_v3": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | SHARED
        | {
            "leading_dense": Key(
                "leading_dense_block_count", int, lambda v: v["first_router"], "the layers before the first router"
            ),
            "shared_experts": Key("expert_shared_count", int, 1, "", lambda _: False),  # its width says all
            "shared_intermediate_size": Key(
                "expert_shared_feed_forward_length",
                int,
                lambda v: v["moe_intermediate_size"],
                "expert_feed_forward_length",
            ),
            "unused_layers": UNUSED_LAYERS,
        },
        neutral=without(UNGATED_NEUTRAL, "expert_shared_feed_forward_length", "nextn_predict_layers"),
    ),
    "lfm2moe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "num_kv_heads": Key("attention.head_count_kv", int, per_layer=True),
            "conv_kernel": Key("shortconv.l_cache", int),
            "leading_dense": Key("leading_dense_block_count", int, 0, "experts in every layer"),
            "gating": Key("expert_gating_func", int, 2, "the architecture's sigmoid"),
        },
        neutral=without(NEUTRAL, "leading_dense_block_count"),
    ),
    "llama": Architecture(rope_interleaved=True, fields=COMMON, neutral=NEUTRAL),
    "mellum": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "moe_intermediate_size": QWEN_WIDTH,
            "sliding_window": Key("attention.sliding_window", int),
            "rope_theta_window": Key("rope.freq_base_swa", float, lambda v: v["rope_theta"], "rope.freq_base"),
        },
        neutral=NEUTRAL,
        window_period=4,
    ),
    "minimax-m2": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "gating": Key("expert_gating_func", int, 2, "the architecture's sigmoid"),
            "n_rot": Key("rope.dimension_count", int),
        },
        neutral=NEUTRAL,
    ),
    "olmoe": Architecture(
        rope_interleaved=False,
        fields=COMMON | {"norm_topk_prob": Key("expert_weights_norm", bool, False, "the architecture's rule")},
        neutral=NEUTRAL,
    ),
    "qwen2moe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "moe_intermediate_size": QWEN_WIDTH,
            "shared_intermediate_size": FEED_FORWARD_SHARED_WIDTH,
            "norm_topk_prob": Key("expert_weights_norm", bool, False, "the architecture's rule"),
        },
        neutral=without(NEUTRAL, "expert_shared_feed_forward_length"),
    ),
    "qwen3moe": Architecture(
        rope_interleaved=False, fields=COMMON | {"moe_intermediate_size": QWEN_WIDTH}, neutral=NEUTRAL
    ),
    "phimoe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "gating": Key("expert_gating_func", int, 1, "", lambda _: False),
            "rope_original_context": Key(
                "rope.scaling.original_context_length", int, lambda v: v["context_length"], "context_length",
                lambda v: bool(v["has_rope_factors"]),
            ),
            "rope_attention_factor": Key(
                "rope.scaling.attn_factor", float, 1.0, "no factor", lambda v: bool(v["has_rope_factors"])
            ),
        },
        neutral=NEUTRAL,
        longrope=True,
        gating="sparsemixer",
        experts_per_tok=2,
    ),
    "qwen35moe": Architecture(rope_interleaved=False, fields=HYBRID | SECTIONS, neutral=HYBRID_NEUTRAL),
    "qwen3next": Architecture(rope_interleaved=False, fields=HYBRID, neutral=HYBRID_NEUTRAL),
    "qwen3vlmoe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | SECTIONS
        | {
            "moe_intermediate_size": QWEN_WIDTH,
            "deepstack_layers": Key("n_deepstack_layers", int, 0, "", lambda _: False),  # pictures enter them, text no
        },
        neutral=NEUTRAL,
    ),
}
