"""The architecture's own keys of a GGUF, written from plain numbers; shared by the Hugging Face reader and `synth`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from convert.gguf_metadata import Metadata
from models.config_mamba import Mamba2Config
from models.config_recurrent import DeltaNetConfig

SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func


@dataclass(frozen=True, slots=True)
class LatentDims:
    """Multi-head latent attention: `q_lora_rank` 0 where queries are not compressed; the other widths are a head's."""

    q_lora_rank: int
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class ConstantFactors:
    """Granite's: on attention scores, on the embedding, on what each half of a block adds, and logits are divided."""

    attention: float
    embedding: float
    residual: float
    logits: float


@dataclass(frozen=True, slots=True)
class WindowHeads:
    """Attention in the layers with a sliding window, where it has another shape than in the others (Gemma 4)."""

    num_kv_heads: int
    head_dim: int
    rope_theta: float


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """`kind` "linear", "yarn", or one that a file keeps as `tensors`, by name, without saying which.
    `attention_factor`: beside YaRN's own. `log_multiplier`: 0.1 * mscale_all_dim, of latent attention only.
    """

    kind: str
    factor: float
    original_context: int | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    tensors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    log_multiplier: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDims:
    """The sizes and rules of a Mixture-of-Experts model. `moe_intermediate_size` is an expert's width;
    `intermediate_size` the dense layers' (equal to it where the architecture has none); `qk_norm`: "none" | "head"
    (a norm of one head's width) | "full" (over all heads). None: key not written."""

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    vocab_size: int
    context_length: int
    rope_theta: float
    rms_norm_eps: float
    norm_topk_prob: bool | None = None
    qk_norm: str = "none"
    attention_bias: bool = False  # on q, k and v
    n_rot: int | None = None  # components of a head that rotate, None: all
    rope_scaling: RopeScaling | None = None
    shared_experts: int | None = None  # ungated ones, each an expert's width
    shared_intermediate_size: int | None = None  # width of the one shared expert
    leading_dense: int | None = None  # first layers without experts
    router_scale: float | None = None
    gating: int | None = None  # SOFTMAX or SIGMOID
    num_groups: int | None = None
    num_groups_used: int | None = None
    output_bias: bool = False  # on attention's output
    output_gate: bool = False  # a matrix whose sigmoid weighs it; then a norm stands behind each half, too
    norm_biases: bool = False  # norms take the mean off and add a bias
    logit_bias: bool = False  # on the output matrix
    sinks: bool = False  # one a head
    expert_biases: bool = False  # on the router and on all experts
    sliding_window: int | None = None
    window_layers: tuple[bool, ...] | None = None  # which layers have it, None: as the architecture has it
    window_theta: float | None = None  # the base of these layers' rotation, where it is another
    window_heads: WindowHeads | None = None  # head_dim and num_kv_heads are then those of the other layers
    shares_values: bool = False  # layers without a window have no attn_v: their keys are their values
    logit_softcap: float | None = None
    swiglu_limit: float | None = None
    conv_kernel: int | None = None  # tokens that a short convolution spans
    conv_layers: tuple[bool, ...] = ()  # which layers have one in attention's place
    factors: ConstantFactors | None = None
    latent: LatentDims | None = None
    delta_net: DeltaNetConfig | None = None  # then attention, where it is, has a gate on its output
    mamba: Mamba2Config | None = None
    conv_bias: bool = False  # on the convolution of Mamba-2 layers
    rotates: bool | None = None  # whether attention knows positions, None: it does
    rope_sections: tuple[int, ...] | None = None  # components for the axes of pictures; text has one position
    deepstack_layers: int | None = None  # first layers that pictures enter, which text does not

    @property
    def has_selection_bias(self) -> bool:
        """Whether the router has a bias that enters the choice only: it goes with scoring by sigmoid, but for ERNIE."""
        return self.gating == SIGMOID or self.architecture == "ernie4_5-moe"

    @property
    def shared_width(self) -> int:
        """Width of all shared experts side by side, 0 where there is none."""
        return self.shared_intermediate_size or (self.shared_experts or 0) * self.moe_intermediate_size


# The others' experts are as wide as a dense layer.
_EXPERT_WIDTH_KEY = (
    "afmoe", "deepseek2", "dots1", "ernie4_5-moe", "exaone-moe", "gemma4", "glm4moe", "gpt-oss", "hunyuan-moe",
    "hy_v3", "lfm2moe", "mellum", "minimax-m2", "qwen2moe", "qwen35moe", "qwen3moe", "qwen3next", "qwen3vlmoe",
)  # fmt: skip


def add_model_keys(metadata: Metadata, dims: ModelDims) -> None:
    """Write the `{architecture}.*` keys with the names and types that llama.cpp reads."""
    arch = dims.architecture
    metadata.u32(f"{arch}.block_count", dims.num_layers)
    metadata.u32(f"{arch}.context_length", dims.context_length)
    metadata.u32(f"{arch}.embedding_length", dims.hidden_size)
    if dims.intermediate_size:
        metadata.u32(f"{arch}.feed_forward_length", dims.intermediate_size)
    metadata.u32(f"{arch}.attention.head_count", dims.num_heads)
    metadata.f32(f"{arch}.attention.layer_norm_rms_epsilon", dims.rms_norm_eps)
    metadata.f32(f"{arch}.rope.freq_base", dims.rope_theta)
    metadata.u32(f"{arch}.vocab_size", dims.vocab_size)
    if dims.latent is None:
        _add_kv_heads(metadata, dims)
        metadata.u32(f"{arch}.attention.key_length", dims.head_dim)
        metadata.u32(f"{arch}.attention.value_length", dims.head_dim)
        metadata.u32(f"{arch}.rope.dimension_count", dims.head_dim if dims.n_rot is None else dims.n_rot)
    else:
        _add_latent_keys(metadata, arch, dims.latent)
    if dims.sliding_window is not None:
        metadata.u32(f"{arch}.attention.sliding_window", dims.sliding_window)
    if dims.window_layers is not None:
        metadata.array(f"{arch}.attention.sliding_window_pattern", np.array(dims.window_layers))
    if dims.window_theta is not None:
        metadata.f32(f"{arch}.rope.freq_base_swa", dims.window_theta)
    if dims.logit_softcap is not None:
        metadata.f32(f"{arch}.final_logit_softcapping", dims.logit_softcap)
    if dims.factors is not None:
        metadata.f32(f"{arch}.attention.scale", dims.factors.attention)
        metadata.f32(f"{arch}.embedding_scale", dims.factors.embedding)
        metadata.f32(f"{arch}.residual_scale", dims.factors.residual)
        metadata.f32(f"{arch}.logit_scale", dims.factors.logits)
    if dims.rotates is not None:
        metadata.boolean(f"{arch}.rope.scaling.finetuned", dims.rotates)
    if dims.rope_scaling is not None:
        _add_rope_scaling(metadata, arch, dims.rope_scaling)
    if dims.delta_net is not None:
        _add_delta_net_keys(metadata, arch, dims.delta_net)
    if dims.rope_sections is not None:
        metadata.array(f"{arch}.rope.dimension_sections", np.array(dims.rope_sections, np.int32))
    if dims.deepstack_layers is not None:
        metadata.u32(f"{arch}.n_deepstack_layers", dims.deepstack_layers)
    _add_expert_keys(metadata, dims)


def _add_delta_net_keys(metadata: Metadata, arch: str, net: DeltaNetConfig) -> None:
    metadata.u32(f"{arch}.ssm.conv_kernel", net.conv_kernel)
    metadata.u32(f"{arch}.ssm.state_size", net.key_dim)
    metadata.u32(f"{arch}.ssm.group_count", net.num_key_heads)
    metadata.u32(f"{arch}.ssm.time_step_rank", net.num_heads)
    metadata.u32(f"{arch}.ssm.inner_size", net.value_width)
    metadata.array(f"{arch}.attention.recurrent_layers", np.array(net.layers))
    interval = net.layers.index(False) + 1 if False in net.layers else 0
    if interval and net.layers == tuple((layer + 1) % interval != 0 for layer in range(len(net.layers))):
        metadata.u32(f"{arch}.full_attention_interval", interval)  # what older llama.cpp reads


def _add_kv_heads(metadata: Metadata, dims: ModelDims) -> None:
    """One number, or one a layer where some have no attention."""
    key = f"{dims.architecture}.attention.head_count_kv"
    if dims.window_heads is not None:
        _add_window_heads(metadata, dims, dims.window_heads)
        return
    if dims.mamba is not None:
        metadata.array(key, np.array([0 if own else dims.num_kv_heads for own in dims.mamba.layers], np.int32))
        _add_mamba_keys(metadata, dims.architecture, dims.mamba)
        return
    if dims.conv_kernel is None:
        metadata.u32(key, dims.num_kv_heads)
        return
    metadata.array(key, np.array([0 if conv else dims.num_kv_heads for conv in dims.conv_layers], np.int32))
    metadata.u32(f"{dims.architecture}.shortconv.l_cache", dims.conv_kernel)


def _add_mamba_keys(metadata: Metadata, arch: str, net: Mamba2Config) -> None:
    metadata.u32(f"{arch}.ssm.conv_kernel", net.conv_kernel)
    metadata.u32(f"{arch}.ssm.state_size", net.state_size)
    metadata.u32(f"{arch}.ssm.group_count", net.num_groups)
    metadata.u32(f"{arch}.ssm.time_step_rank", net.num_heads)
    metadata.u32(f"{arch}.ssm.inner_size", net.inner_width)


def _add_window_heads(metadata: Metadata, dims: ModelDims, own: WindowHeads) -> None:
    arch, windows = dims.architecture, dims.window_layers or ()
    kv_heads = [own.num_kv_heads if window else dims.num_kv_heads for window in windows]
    metadata.array(f"{arch}.attention.head_count_kv", np.array(kv_heads, np.int32))
    metadata.u32(f"{arch}.attention.key_length_swa", own.head_dim)
    metadata.u32(f"{arch}.attention.value_length_swa", own.head_dim)
    metadata.u32(f"{arch}.rope.dimension_count_swa", own.head_dim)
    metadata.f32(f"{arch}.rope.freq_base_swa", own.rope_theta)
    metadata.u32(f"{arch}.attention.shared_kv_layers", 0)
    metadata.u32(f"{arch}.embedding_length_per_layer_input", 0)


def _add_latent_keys(metadata: Metadata, arch: str, latent: LatentDims) -> None:
    """The newer layout: one key head as wide as what is cached, the expanded widths in `*_mla`."""
    if latent.q_lora_rank:
        metadata.u32(f"{arch}.attention.q_lora_rank", latent.q_lora_rank)
    metadata.u32(f"{arch}.attention.kv_lora_rank", latent.kv_lora_rank)
    metadata.u32(f"{arch}.attention.head_count_kv", 1)
    metadata.u32(f"{arch}.attention.key_length", latent.kv_lora_rank + latent.rope_dim)
    metadata.u32(f"{arch}.attention.value_length", latent.kv_lora_rank)
    metadata.u32(f"{arch}.attention.key_length_mla", latent.nope_dim + latent.rope_dim)
    metadata.u32(f"{arch}.attention.value_length_mla", latent.value_dim)
    metadata.u32(f"{arch}.rope.dimension_count", latent.rope_dim)


def _add_rope_scaling(metadata: Metadata, arch: str, scaling: RopeScaling) -> None:
    at = f"{arch}.rope.scaling"
    if not scaling.tensors:
        metadata.string(f"{at}.type", scaling.kind)
        metadata.f32(f"{at}.factor", scaling.factor)
    if scaling.original_context is not None:
        metadata.u32(f"{at}.original_context_length", scaling.original_context)
    for name, value in (
        ("attn_factor", scaling.attention_factor),
        ("yarn_beta_fast", scaling.beta_fast),
        ("yarn_beta_slow", scaling.beta_slow),
        ("yarn_log_multiplier", scaling.log_multiplier),
    ):
        if value is not None:
            metadata.f32(f"{at}.{name}", value)


def _add_expert_keys(metadata: Metadata, dims: ModelDims) -> None:
    arch = dims.architecture
    metadata.u32(f"{arch}.expert_count", dims.num_experts)
    metadata.u32(f"{arch}.expert_used_count", dims.num_experts_per_tok)
    if arch in _EXPERT_WIDTH_KEY:
        metadata.u32(f"{arch}.expert_feed_forward_length", dims.moe_intermediate_size)
    for key, number in (
        ("expert_shared_count", dims.shared_experts),
        ("expert_shared_feed_forward_length", dims.shared_intermediate_size),
        ("leading_dense_block_count", dims.leading_dense),
        ("expert_gating_func", dims.gating),
        ("expert_group_count", dims.num_groups),
        ("expert_group_used_count", dims.num_groups_used),
    ):
        if number is not None:
            metadata.u32(f"{arch}.{key}", number)
    if arch == "ernie4_5-moe":
        metadata.u32(f"{arch}.interleave_moe_layer_step", 1)  # llama.cpp opens no such file without it
    if dims.swiglu_limit is not None:
        metadata.f32(f"{arch}.swiglu_clamp_exp", dims.swiglu_limit)
    if dims.router_scale is not None:
        metadata.f32(f"{arch}.expert_weights_scale", dims.router_scale)
    if dims.norm_topk_prob is not None:
        metadata.boolean(f"{arch}.expert_weights_norm", dims.norm_topk_prob)
