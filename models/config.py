"""`ModelConfig`: the shape and the rules of a model, read once and strictly from its metadata. It reads no weights."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels.backend import RouterSpec
from models.config_gemma4 import attention_by_layer, settle_heads
from models.config_latent import LatentConfig, read_latent
from models.config_reader import ConfigReader
from models.config_recurrent import DeltaNetConfig, read_delta_net
from models.config_short_conv import read_short_conv
from models.config_table import ARCHITECTURES, GATINGS, ROPE_SCALINGS, Architecture
from models.errors import GGUFError, UnsupportedArchitecture, UnsupportedError
from models.gguf import GGUFModel
from models.gguf_cursor import show
from models.layer_memory import LayerMemory

MIXER_THRESHOLD = 0.02  # twice the jitter that Phi-3.5-MoE was trained with; no key of a file says it
MAX_EXPERTS = 1 << 14  # in one layer; the largest known models have some hundreds


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding of the first `n_rot` components of each head.

    interleaved: pairs (0, 1), (2, 3).. else (i, i + n_rot / 2). scaling: "none"; "linear" (positions / factor); "yarn"
    (original_context, beta_fast and beta_slow place the ramp; cos and sin are multiplied by (0.1 ln factor + 1) *
    attention_factor); "longrope" (the file holds divisors for contexts up to original_context and for longer ones; cos
    and sin are multiplied by attention_factor).
    """

    theta: float
    n_rot: int
    interleaved: bool
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_components: bool = True  # whether YaRN's ramp begins and ends at whole components


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes are counts of elements. `intermediate_size` is the dense feed-forward's width, 0 where every layer has
    experts.

    defaults_used: "key = value (why)" for each key that the file leaves out; unread_keys: keys of the architecture
    that mean nothing here.
    """

    architecture: str
    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    router: RouterSpec
    tied_embeddings: bool
    shared_intermediate_size: int = 0  # width of the shared expert, 0: there is none
    unused_layers: int = 0  # after the last, for predicting several tokens at once: not computed
    leading_dense: int = 0  # layers before the first with experts
    sliding_window: int = 0  # positions that attention sees, 0: all
    attention_scale: float = 1.0  # on query times key
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # on what each half of a block adds
    logit_divisor: float = 1.0
    logit_softcap: float = 0.0  # cap * tanh(logits / cap), 0: not capped
    swiglu_limit: float = 0.0  # of the clamped unit of the experts, 0: they are not clamped
    latent: LatentConfig | None = None  # then head_dim and value_dim are those of the cache
    window_layers: tuple[bool, ...] | None = None  # which layers have the sliding window, None: all
    rope_window: RopeConfig | None = None  # of the layers with a sliding window, where they rotate otherwise
    own_memory: tuple[LayerMemory | None, ...] | None = None  # of layers that keep something else than the rest
    delta_net: DeltaNetConfig | None = None  # what those layers are
    reordered: tuple[str, ...] = ()  # ends of the names of matrices whose rows are put into another order when read
    defaults_used: tuple[str, ...] = ()
    unread_keys: tuple[str, ...] = ()

    @property
    def layer_memory(self) -> tuple[LayerMemory, ...]:
        """What each layer keeps of a sequence."""
        return tuple(self.memory_of(layer) for layer in range(self.num_layers))

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of all layers, 0 where there are none."""
        return sum(memory.state_bytes for memory in self.layer_memory)

    def window_of(self, layer: int) -> int:
        """Positions that attention sees in `layer`, 0: all."""
        has_window = self.window_layers is None or self.window_layers[layer]
        return self.sliding_window if has_window else 0

    def memory_of(self, layer: int) -> LayerMemory:
        """What `layer` keeps of a sequence."""
        own = self.own_memory[layer] if self.own_memory is not None else None
        return own or LayerMemory(self.num_kv_heads, self.head_dim, self.value_dim, self.window_of(layer))

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """The layers that have experts."""
        return tuple(range(self.leading_dense, self.num_layers))

    def is_of_unused_layer(self, tensor_name: str) -> bool:
        """Whether a tensor belongs to one of the layers that are not computed."""
        prefixes = tuple(f"blk.{self.num_layers + i}." for i in range(self.unused_layers))
        return tensor_name.startswith(prefixes)

    @classmethod
    def from_gguf(cls, model: GGUFModel) -> ModelConfig:
        """Read the config of an open model.

        Raises UnsupportedArchitecture or UnsupportedError for what pearl does not compute, GGUFError for metadata that
        is missing, of the wrong type or contradicts itself or the embedding's shape.
        """
        where = str(model.paths[0])
        architecture = architecture_of(model)
        table = ARCHITECTURES[architecture]
        _refuse_dense(model, architecture, where)
        reader = ConfigReader(model.metadata, architecture, where)
        has_selection_bias = any(".exp_probs_b" in name for name in model.tensors)
        has_rope_factors = "rope_factors_long.weight" in model.tensors
        facts = {"has_selection_bias": has_selection_bias, "has_rope_factors": has_rope_factors}
        values = reader.read_fields(table, facts)
        values["num_layers"] -= values.get("unused_layers", 0)
        latent = read_latent(values, where) if "kv_lora_rank" in values else None
        own_memory = read_short_conv(values, where) if "conv_kernel" in values else None
        if "head_dim_window" in values:
            settle_heads(values, where)
        unread = reader.refuse_maths(table)
        _check_sizes(values, where, len(model.tensors))
        delta_net = read_delta_net(values, where) if "ssm_heads" in values else None
        window_layers, rope_window = _window_layers(reader, table, values), None
        has_kinds = "head_dim_window" in values
        if has_kinds:
            own_memory = attention_by_layer(values, window_layers, where)
            rope_window = RopeConfig(values["rope_theta_window"], values["n_rot_window"], table.rope_interleaved)
        name = model.metadata.get("general.name")
        return cls(
            architecture=architecture,
            name=name if isinstance(name, str) else model.paths[0].stem,
            intermediate_size=values["feed_forward_length"] if values.get("leading_dense", 0) or has_kinds else 0,
            vocab_size=_vocab_size(model, reader, values["hidden_size"]),
            rope=_rope(values, table, where),
            router=_router(values, table, where),
            tied_embeddings="output.weight" not in model.tensors,
            shared_intermediate_size=_shared_width(values),
            unused_layers=values.get("unused_layers", 0),
            leading_dense=values.get("leading_dense", 0),
            attention_scale=values.get("attention_scale", 0.0) or values["head_dim"] ** -0.5,
            swiglu_limit=values.get("swiglu_limit", 0.0),
            latent=latent,
            window_layers=window_layers,
            rope_window=rope_window,
            logit_softcap=values.get("logit_softcap", 0.0),
            own_memory=own_memory if delta_net is None else delta_net.memory,
            delta_net=delta_net,
            reordered=(".attn_q.weight", ".ssm_in.weight", ".ssm_ba.weight") if delta_net is not None else (),
            **_factors(values),
            defaults_used=tuple(reader.defaults_used),
            unread_keys=unread,
            **{field: values[field] for field in _PLAIN_FIELDS},
        )


_PLAIN_FIELDS = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "value_dim",
    "moe_intermediate_size",
    "context_length",
    "rms_norm_eps",
    "sliding_window",
)
_POSITIVE = (
    "num_layers",
    "context_length",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "value_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_rot",
    "rms_norm_eps",
    "rope_theta",
)


def architecture_of(model: GGUFModel) -> str:
    """`general.architecture`, checked to be one that pearl runs. Raises UnsupportedArchitecture with the nearest
    relative, GGUFError.
    """
    where = str(model.paths[0])
    kind = model.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        raise UnsupportedError(f"{where}: general.type is {show(str(kind))}; pearl runs whole models (type 'model')")
    name = model.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise GGUFError(f"{where}: metadata 'general.architecture' is missing or no string; is this a model?")
    if name not in ARCHITECTURES:
        near = difflib.get_close_matches(name, ARCHITECTURES, 1, 0.5)
        raise UnsupportedArchitecture(
            show(name)[1:-1], ARCHITECTURES, where, f"nearest relative: {near[0]}" if near else ""
        )
    return name


def _refuse_dense(model: GGUFModel, architecture: str, where: str) -> None:
    count = model.metadata.get(f"{architecture}.expert_count", 0)
    if type(count) is int and count == 0:
        raise UnsupportedError(
            f"{where}: a dense '{architecture}' model without experts ({architecture}.expert_count is absent or 0); "
            "pearl runs Mixture-of-Experts models"
        )


def _check_sizes(v: dict[str, Any], where: str, n_tensors: int) -> None:
    """Refuse sizes that cannot be: the rest of pearl may divide and allocate by them."""
    if n_tensors == 0:
        raise GGUFError(
            f"{where}: holds metadata and no tensors (a vocabulary file?); a model to run needs its weights"
        )
    for field in _POSITIVE:
        if v.get(field, 1) <= 0:
            raise GGUFError(f"{where}: {field} is {v[field]}; it must be above 0")
    rules = {
        f"{v['num_layers']} layers in a file of {n_tensors} tensors": v["num_layers"] <= n_tensors,
        f"{v['num_heads']} heads do not divide by {v['num_kv_heads']} key/value heads": (
            v["num_heads"] % v["num_kv_heads"] == 0
        ),
        f"{v['num_experts']} experts in a layer (pearl counts to {MAX_EXPERTS})": v["num_experts"] <= MAX_EXPERTS,
        f"{v['num_experts_per_tok']} of {v['num_experts']} experts per token": v["num_experts_per_tok"]
        <= v["num_experts"],
        f"{v['n_rot']} rotated components in heads of {v['head_dim']}": v["n_rot"] <= v["head_dim"]
        and v["n_rot"] % 2 == 0,
        f"{v.get('unused_layers', 0)} layers for predicting several tokens": v.get("unused_layers", 0) >= 0,
        f"a shared expert of width {_shared_width(v)}": _shared_width(v) >= 0,
        f"{v.get('leading_dense', 0)} of {v['num_layers']} layers without experts": (
            0 <= v.get("leading_dense", 0) < v["num_layers"]
        ),
        f"a sliding window of {v['sliding_window']}": v["sliding_window"] >= 0,
    }
    for rule, holds in rules.items():
        if not holds:
            raise GGUFError(f"{where}: the metadata contradicts itself: {rule}")
    if v["head_dim"] != v["value_dim"] and "kv_lora_rank" not in v:
        raise UnsupportedError(
            f"{where}: attention.key_length {v['head_dim']} and attention.value_length {v['value_dim']} differ, "
            "which is not implemented"
        )


def _vocab_size(model: GGUFModel, reader: ConfigReader, hidden_size: int) -> int:
    """Rows of the embedding, which the metadata must agree with."""
    embedding = model.tensors.get("token_embd.weight")
    if embedding is None:
        raise GGUFError(f"{reader.where}: tensor 'token_embd.weight' is missing; is this a whole model?")
    declared = reader.read_optional("vocab_size", int)
    if declared is None:
        tokens = model.metadata.get("tokenizer.ggml.tokens", ())
        if not isinstance(tokens, Sequence) or isinstance(tokens, str):
            raise GGUFError(f"{reader.where}: metadata 'tokenizer.ggml.tokens' must be an array of strings")
        declared = len(tokens) or embedding.n_rows
        reader.defaults_used.append(f"{reader.prefix}.vocab_size = {declared} (length of the vocabulary)")
    if embedding.shape != (hidden_size, declared):
        raise GGUFError(
            f"{reader.where}: 'token_embd.weight' has shape {list(embedding.shape)}, "
            f"the metadata says [{hidden_size}, {declared}]"
        )
    return int(declared)


def _factors(v: dict[str, Any]) -> dict[str, Any]:
    """Constant factors; 0 means "not set" in files."""
    return {field: v.get(field, 0.0) or 1.0 for field in ("embedding_scale", "residual_scale", "logit_divisor")}


def _shared_width(v: dict[str, Any]) -> int:
    """Width of the shared expert: stated, or so many experts' widths side by side."""
    return int(v.get("shared_intermediate_size", v.get("shared_experts", 0) * v["moe_intermediate_size"]))


def _window_layers(reader: ConfigReader, table: Architecture, v: dict[str, Any]) -> tuple[bool, ...] | None:
    """Which layers have the sliding window: stated layer by layer, or all but every n-th."""
    if not table.window_period or not v["sliding_window"]:
        return None
    pattern = reader.read_pattern("attention.sliding_window_pattern", table.window_period, v["num_layers"])
    if isinstance(pattern, tuple):
        return pattern
    return tuple(layer % pattern < pattern - 1 for layer in range(v["num_layers"]))


def _rope(v: dict[str, Any], table: Architecture, where: str) -> RopeConfig:
    scaling, factor = v["rope_scaling"], v["rope_factor"] or 1.0
    if scaling not in ROPE_SCALINGS:
        raise UnsupportedError(
            f"{where}: rope.scaling.type {show(scaling)} is not implemented; supported: {', '.join(ROPE_SCALINGS)}"
        )
    if table.longrope and v["has_rope_factors"]:
        scaling = "longrope"
    if factor < 1.0:
        raise GGUFError(f"{where}: rope.scaling.factor is {factor}; it must be 1 or above")
    if scaling == "linear" and factor == 1.0:
        scaling = "none"
    if scaling == "yarn" and min(v["rope_original_context"], v["rope_beta_fast"], v["rope_beta_slow"]) <= 0:
        raise GGUFError(f"{where}: YaRN needs a rope.scaling.original_context_length and betas above 0")
    return RopeConfig(
        theta=v["rope_theta"],
        n_rot=v["n_rot"],
        interleaved=table.rope_interleaved,
        scaling=scaling,
        factor=factor,
        original_context=v["rope_original_context"],
        attention_factor=v["rope_attention_factor"],
        beta_fast=v["rope_beta_fast"],
        beta_slow=v["rope_beta_slow"],
        whole_components=table.yarn_whole_components,
    )


def _router(v: dict[str, Any], table: Architecture, where: str) -> RouterSpec:
    gating = table.gating or GATINGS.get(v["gating"])
    if gating is None:
        names = ", ".join(f"{number} ({name})" for number, name in GATINGS.items())
        raise UnsupportedError(f"{where}: expert_gating_func {v['gating']} is not implemented; supported: {names}")
    num_groups = max(v["num_groups"], 1)
    num_groups_used = v["num_groups_used"] or num_groups
    if v["num_experts"] % num_groups or not 0 < num_groups_used <= num_groups:
        raise GGUFError(
            f"{where}: {num_groups_used} of {num_groups} groups of {v['num_experts']} experts is no possible grouping"
        )
    return RouterSpec(
        num_experts=v["num_experts"],
        num_experts_per_tok=v["num_experts_per_tok"],
        gating=gating,
        norm_topk_prob=v["norm_topk_prob"],
        scale=v["router_scale"] or 1.0,  # 0 means "not set" in files, never "no output"
        num_groups=num_groups,
        num_groups_used=num_groups_used,
        mixer_threshold=MIXER_THRESHOLD if gating == "sparsemixer" else 0.0,
    )
