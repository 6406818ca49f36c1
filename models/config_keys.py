"""What a metadata key is to an architecture, and the keys that most architectures have in common: what a file must say,
what it may leave out and what that then means, and what is refused because it changes the maths in a way that pearl
does not compute. Keys are spelled here and in `models.config_table`, and nowhere else.
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
    pattern. rope_in_windows_only: the others do not rotate. yarn_whole_components: see `RopeConfig`. longrope: files
    may hold rope_factors_*. gating: the only one, where no key says it; experts_per_tok: the only number that its rule
    is for, 0: any.
    """

    rope_interleaved: bool
    fields: Mapping[str, Key]
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    window_period: int = 0
    yarn_whole_components: bool = True
    rope_in_windows_only: bool = False
    longrope: bool = False
    gating: str = ""
    experts_per_tok: int = 0


def ratio(total: int, parts: int) -> int:
    """total / parts, or 0, which no size may be, where that is no whole number."""
    return total // parts if parts > 0 and total % parts == 0 else 0


def _has_groups(v: Values) -> bool:
    return bool(v["num_groups"] > 1)


def _is_yarn(v: Values) -> bool:
    return bool(v["rope_scaling"] == "yarn")


HEAD_WIDTH = "embedding_length / attention.head_count"

COMMON: dict[str, Key] = {
    "num_layers": Key("block_count", int),
    "context_length": Key("context_length", int),
    "hidden_size": Key("embedding_length", int),
    "feed_forward_length": Key("feed_forward_length", int),
    "num_heads": Key("attention.head_count", int),
    "num_kv_heads": Key("attention.head_count_kv", int, lambda v: v["num_heads"], "one per query head"),
    "head_dim": Key("attention.key_length", int, lambda v: ratio(v["hidden_size"], v["num_heads"]), HEAD_WIDTH),
    "value_dim": Key("attention.value_length", int, lambda v: ratio(v["hidden_size"], v["num_heads"]), HEAD_WIDTH),
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


def without(neutral: dict[str, tuple[Any, ...]], *names: str) -> dict[str, tuple[Any, ...]]:
    """`neutral` less the keys that an architecture does compute."""
    return {name: values for name, values in neutral.items() if name not in names}


# Keys that say nothing about the maths. vocab_size is read apart, because its default is not another key's value.
INERT = frozenset({"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"})

GATINGS = {1: "softmax", 2: "sigmoid", 3: "softmax_topk"}
ROPE_SCALINGS = ("none", "linear", "yarn")
