"""The metadata keys of each architecture: what a file must say, what it may leave out and what that then means, and
what is refused because it changes the maths in a way that pearl does not compute. Keys are spelled here and nowhere
else.

A new architecture is one more entry in `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One metadata key, without the architecture's prefix.

    kind: int, float, bool or str, exactly; ints may be stored per layer if all are equal, and where `per_layer` any
    kind may, equal or not: then the value is a tuple. Without a `default` the key is required; the default is a value
    or a function of the fields read before it, and `why` says where it comes from.
    """

    name: str
    kind: type
    default: Any | Callable[[Values], Any] = None
    why: str = ""
    matters: Callable[[Values], bool] = lambda _: True  # False: not used given the fields before, so no note
    per_layer: bool = False

    @property
    def required(self) -> bool:
        return self.default is None


@dataclass(frozen=True, slots=True)
class Architecture:
    """`fields`: config field to key, in reading order. `neutral`: keys allowed only with one of these values.

    window_period n: all layers but every n-th have the sliding window, unless the file says which; 0: it has no
    pattern. yarn_whole_components: see `RopeConfig`. longrope: files may hold rope_factors_*. gating: the only one,
    where no key says it.
    """

    rope_interleaved: bool
    fields: Mapping[str, Key]
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    window_period: int = 0
    yarn_whole_components: bool = True
    longrope: bool = False
    gating: str = ""


def _ratio(total: int, parts: int) -> int:
    """total / parts, or 0, which no size may be, where that is no whole number."""
    return total // parts if parts > 0 and total % parts == 0 else 0


def _has_groups(v: Values) -> bool:
    return bool(v["num_groups"] > 1)


def _is_yarn(v: Values) -> bool:
    return bool(v["rope_scaling"] == "yarn")


_HEAD_WIDTH = "embedding_length / attention.head_count"

COMMON: dict[str, Key] = {
    "num_layers": Key("block_count", int),
    "context_length": Key("context_length", int),
    "hidden_size": Key("embedding_length", int),
    "feed_forward_length": Key("feed_forward_length", int),
    "num_heads": Key("attention.head_count", int),
    "num_kv_heads": Key("attention.head_count_kv", int, lambda v: v["num_heads"], "one per query head"),
    "head_dim": Key("attention.key_length", int, lambda v: _ratio(v["hidden_size"], v["num_heads"]), _HEAD_WIDTH),
    "value_dim": Key("attention.value_length", int, lambda v: _ratio(v["hidden_size"], v["num_heads"]), _HEAD_WIDTH),
    "sliding_window": Key("attention.sliding_window", int, 0, "full attention"),
    "rms_norm_eps": Key("attention.layer_norm_rms_epsilon", float),
    "num_experts": Key("expert_count", int),
    "num_experts_per_tok": Key("expert_used_count", int),
    "moe_intermediate_size": Key(
        "expert_feed_forward_length", int, lambda v: v["feed_forward_length"], "feed_forward_length is an expert's"
    ),
    "gating": Key("expert_gating_func", int, 1, "softmax"),
    "norm_topk_prob": Key("expert_weights_norm", bool, True, "the architecture's rule"),
    "router_scale": Key("expert_weights_scale", float, 1.0, "no scaling"),
    "num_groups": Key("expert_group_count", int, 1, "experts are not grouped"),
    "num_groups_used": Key(
        "expert_group_used_count", int, lambda v: max(v["num_groups"], 1), "every group", _has_groups
    ),
    "n_rot": Key("rope.dimension_count", int, lambda v: v["head_dim"], "the whole head"),
    "rope_theta": Key("rope.freq_base", float, 10000.0, "llama.cpp's default"),
    "rope_factor": Key("rope.scaling.factor", float, 1.0, "no scaling"),
    "rope_scaling": Key(
        "rope.scaling.type",
        str,
        lambda v: "none" if v["rope_factor"] in (0.0, 1.0) else "linear",
        "llama.cpp's default",
    ),
    "rope_original_context": Key(
        "rope.scaling.original_context_length", int, lambda v: v["context_length"], "context_length", _is_yarn
    ),
    "rope_attention_factor": Key("rope.scaling.attn_factor", float, 1.0, "no factor", _is_yarn),
    "rope_beta_fast": Key("rope.scaling.yarn_beta_fast", float, 32.0, "YaRN's own", _is_yarn),
    "rope_beta_slow": Key("rope.scaling.yarn_beta_slow", float, 1.0, "YaRN's own", _is_yarn),
}

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.kv_lora_rank": (0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.q_lora_rank": (0,),
    "attention.scale": (0.0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "embedding_length_out": (0,),
    "embedding_scale": (0.0, 1.0),
    "expert_group_scale": (0.0, 1.0),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "final_logit_softcapping": (0.0,),
    "interleave_moe_layer_step": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "moe_every_n_layers": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
    "rope.scaling.alpha": (0.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (-1.0, 1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "router_logit_softcapping": (0.0,),
    "swiglu_clamp_exp": (0.0,),
    "swiglu_clamp_shexp": (0.0,),
    "use_parallel_residual": (False,),
}


def _without(neutral: dict[str, tuple[Any, ...]], *names: str) -> dict[str, tuple[Any, ...]]:
    """`neutral` less the keys that an architecture does compute."""
    return {name: values for name, values in neutral.items() if name not in names}


# Keys that say nothing about the maths. vocab_size is read apart, because its default is not another key's value.
INERT = frozenset({"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"})

GATINGS = {1: "softmax", 2: "sigmoid", 3: "softmax_topk"}
ROPE_SCALINGS = ("none", "linear", "yarn")

_QWEN_WIDTH = Key(
    "expert_feed_forward_length",
    int,
    lambda v: _ratio(v["feed_forward_length"], v["num_experts_per_tok"]),
    "feed_forward_length / expert_used_count",
)

_LATENT: dict[str, Key] = {
    "q_lora_rank": Key("attention.q_lora_rank", int, 0, "queries are projected directly"),
    "kv_lora_rank": Key("attention.kv_lora_rank", int),
    "mla_key_length": Key("attention.key_length_mla", int, lambda v: v["head_dim"], "attention.key_length"),
    "mla_value_length": Key("attention.value_length_mla", int, lambda v: v["value_dim"], "attention.value_length"),
    "yarn_log_multiplier": Key("rope.scaling.yarn_log_multiplier", float, 0.0, "no factor on the softmax"),
}

_DEEPSEEK2 = (
    COMMON
    | _LATENT
    | {
        "leading_dense": Key("leading_dense_block_count", int, 0, "experts in every layer"),
        "shared_experts": Key("expert_shared_count", int, 0, "no shared expert"),
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
_HYBRID: dict[str, Key] = {
    **COMMON,
    "feed_forward_length": Key("feed_forward_length", int, 0, "every layer has experts", lambda _: False),
    "moe_intermediate_size": _QWEN_WIDTH,
    "shared_intermediate_size": Key(
        "expert_shared_feed_forward_length", int, lambda v: v["feed_forward_length"], "feed_forward_length"
    ),
    "unused_layers": Key("nextn_predict_layers", int, 0, "none", lambda _: False),
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
_HYBRID_NEUTRAL = _without(NEUTRAL, "expert_shared_feed_forward_length", "nextn_predict_layers")

ARCHITECTURES: dict[str, Architecture] = {
    "deepseek2": Architecture(
        rope_interleaved=True,
        fields=_DEEPSEEK2,
        neutral=_without(
            NEUTRAL,
            "attention.kv_lora_rank",
            "attention.q_lora_rank",
            "expert_shared_count",
            "leading_dense_block_count",
            "rope.scaling.yarn_log_multiplier",
        ),
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
        neutral=_without(NEUTRAL, "final_logit_softcapping")
        | {"attention.shared_kv_layers": (0,), "embedding_length_per_layer_input": (0,)},
        window_period=6,
    ),
    "glm4moe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "leading_dense": Key("leading_dense_block_count", int, 0, "experts in every layer"),
            "shared_experts": Key("expert_shared_count", int, 0, "no shared expert"),
            "unused_layers": Key("nextn_predict_layers", int, 0, "none"),
            "gating": Key("expert_gating_func", int, 2, "the architecture's sigmoid"),
        },
        neutral=_without(NEUTRAL, "expert_shared_count", "leading_dense_block_count", "nextn_predict_layers"),
    ),
    "gpt-oss": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "sliding_window": Key("attention.sliding_window", int),
            "gating": Key("expert_gating_func", int, 3, "the architecture's softmax over the chosen"),
            "swiglu_limit": Key("swiglu_clamp_exp", float, 7.0, "gpt-oss's own"),
        },
        neutral=_without(NEUTRAL, "swiglu_clamp_exp"),
        window_period=2,
        yarn_whole_components=False,
    ),
    "granitemoe": Architecture(
        rope_interleaved=True,
        fields=COMMON
        | {
            "shared_intermediate_size": Key("expert_shared_feed_forward_length", int, 0, "no shared expert"),
            "attention_scale": Key("attention.scale", float, 0.0, "head width^-0.5"),
            "embedding_scale": Key("embedding_scale", float, 1.0, "no scaling"),
            "residual_scale": Key("residual_scale", float, 1.0, "no scaling"),
            "logit_divisor": Key("logit_scale", float, 1.0, "no scaling"),
        },
        # In this architecture llama.cpp takes "not finetuned" for "no rotation at all".
        neutral=_without(
            NEUTRAL,
            "attention.scale",
            "embedding_scale",
            "expert_shared_feed_forward_length",
            "logit_scale",
            "residual_scale",
        )
        | {"rope.scaling.finetuned": (True,)},
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
        neutral=_without(NEUTRAL, "leading_dense_block_count"),
    ),
    "llama": Architecture(rope_interleaved=True, fields=COMMON, neutral=NEUTRAL),
    "olmoe": Architecture(
        rope_interleaved=False,
        fields=COMMON | {"norm_topk_prob": Key("expert_weights_norm", bool, False, "the architecture's rule")},
        neutral=NEUTRAL,
    ),
    "qwen2moe": Architecture(
        rope_interleaved=False,
        fields=COMMON
        | {
            "moe_intermediate_size": _QWEN_WIDTH,
            "shared_intermediate_size": Key(
                "expert_shared_feed_forward_length", int, lambda v: v["feed_forward_length"], "feed_forward_length"
            ),
            "norm_topk_prob": Key("expert_weights_norm", bool, False, "the architecture's rule"),
        },
        neutral=_without(NEUTRAL, "expert_shared_feed_forward_length"),
    ),
    "qwen3moe": Architecture(
        rope_interleaved=False, fields=COMMON | {"moe_intermediate_size": _QWEN_WIDTH}, neutral=NEUTRAL
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
    ),
    # Text has one position for all three axes of this rotation, so its sections mean nothing here.
    "qwen35moe": Architecture(
        rope_interleaved=False,
        fields=_HYBRID
        | {"rope_sections": Key("rope.dimension_sections", int, (), "", lambda _: False, per_layer=True)},
        neutral=_HYBRID_NEUTRAL,
    ),
    "qwen3next": Architecture(rope_interleaved=False, fields=_HYBRID, neutral=_HYBRID_NEUTRAL),
}
