"""`ModelConfig`: the shape and the rules of a model, read once and strictly from its metadata. It reads no weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kernels.router_spec import RouterSpec
from models.config_checks import architecture_of, check_sizes, read_vocab_size, refuse_dense
from models.config_experts import read_router, shared_width
from models.config_gemma4 import attention_by_layer, settle_heads
from models.config_keys import Architecture
from models.config_latent import LatentConfig, read_latent
from models.config_mamba import Mamba2Config, read_mamba
from models.config_reader import ConfigReader
from models.config_recurrent import DeltaNetConfig, read_delta_net
from models.config_rope import RopeConfig, read_rope
from models.config_short_conv import read_short_conv
from models.config_table import ARCHITECTURES
from models.errors import GGUFError
from models.gguf import GGUFModel
from models.layer_memory import LayerMemory


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
    mamba: Mamba2Config | None = None  # or these
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

    @property
    def recurrent_ops(self) -> tuple[str, ...]:
        """Which ops of `kernels.recurrent_ops` the layers that carry a state ask for."""
        nets = {"delta_rule": self.delta_net, "selective_scan": self.mamba}
        own = tuple(name for name, net in nets.items() if net is not None)
        return ("causal_conv", *own) if self.state_bytes else ()

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
        refuse_dense(model, architecture, where)
        reader = ConfigReader(model.metadata, architecture, where)
        values = reader.read_fields(table, _facts(model))
        values["num_layers"] -= values.get("unused_layers", 0)
        latent = read_latent(values, where) if "kv_lora_rank" in values else None
        own_memory = read_short_conv(values, where) if "conv_kernel" in values else None
        if "head_dim_window" in values:
            settle_heads(values, where)
        mamba = read_mamba(values, where) if "mamba_heads" in values else None
        if mamba is not None:
            own_memory = mamba.memory
        unread = reader.refuse_maths(table)
        check_sizes(values, where, len(model.tensors))
        delta_net = read_delta_net(values, where) if "ssm_heads" in values else None
        window_layers = _window_layers(reader, table, values)
        has_kinds = "head_dim_window" in values
        if has_kinds:
            own_memory = attention_by_layer(values, window_layers, where)
        rope, rope_window = _rotations(values, table, where)
        name = model.metadata.get("general.name")
        return cls(
            architecture=architecture,
            name=name if isinstance(name, str) else model.paths[0].stem,
            intermediate_size=values["feed_forward_length"] if values.get("leading_dense", 0) or has_kinds else 0,
            vocab_size=read_vocab_size(model, reader, values["hidden_size"]),
            rope=rope,
            router=read_router(values, table, where),
            tied_embeddings="output.weight" not in model.tensors,
            shared_intermediate_size=shared_width(values),
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
            mamba=mamba,
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


def _facts(model: GGUFModel) -> dict[str, Any]:
    """What tensors say where no key does."""
    layers = range(len(model.tensors))
    return {
        "has_selection_bias": any(".exp_probs_b" in name for name in model.tensors),
        "has_rope_factors": "rope_factors_long.weight" in model.tensors,
        "first_router": next((n for n in layers if f"blk.{n}.ffn_gate_inp.weight" in model.tensors), 0),
    }


def _rotations(v: dict[str, Any], table: Architecture, where: str) -> tuple[RopeConfig, RopeConfig | None]:
    """Of all layers, or of those without a sliding window and of those with one, where these rotate otherwise."""
    rope = read_rope(v, table, where)
    if not v.get("rotates", True):
        return replace(rope, scaling="off"), None
    if table.rope_in_windows_only:
        return replace(rope, scaling="off"), rope
    if "rope_theta_window" not in v:
        return rope, None
    return rope, RopeConfig(v["rope_theta_window"], v.get("n_rot_window", v["n_rot"]), table.rope_interleaved)


def _factors(v: dict[str, Any]) -> dict[str, Any]:
    """Constant factors; 0 means "not set" in files."""
    return {field: v.get(field, 0.0) or 1.0 for field in ("embedding_scale", "residual_scale", "logit_divisor")}


def _window_layers(reader: ConfigReader, table: Architecture, v: dict[str, Any]) -> tuple[bool, ...] | None:
    """Which layers have the sliding window: stated layer by layer, or all but every n-th."""
    if not table.window_period:
        return None
    if not v["sliding_window"]:
        raise GGUFError(
            f"{reader.where}: {reader.prefix}.attention.sliding_window is 0; architecture '{reader.prefix}' has layers "
            "with a window, which must be above 0"
        )
    pattern = reader.read_pattern("attention.sliding_window_pattern", table.window_period, v["num_layers"])
    if isinstance(pattern, tuple):
        return pattern
    return tuple(layer % pattern < pattern - 1 for layer in range(v["num_layers"]))
