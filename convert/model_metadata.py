"""The architecture's own keys of a GGUF, written from plain numbers; shared by the Hugging Face reader and `synth`."""

from __future__ import annotations

from dataclasses import dataclass

from convert.gguf_metadata import Metadata


@dataclass(frozen=True, slots=True)
class ModelDims:
    """What every supported Mixture-of-Experts architecture has. `moe_intermediate_size` is an expert's width;
    `intermediate_size` the dense layers' (equal to it where the architecture has no dense layers). None: key not
    written."""

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


def add_model_keys(metadata: Metadata, dims: ModelDims) -> None:
    """Write the `{architecture}.*` keys with the names and types that llama.cpp reads."""
    arch = dims.architecture
    metadata.u32(f"{arch}.block_count", dims.num_layers)
    metadata.u32(f"{arch}.context_length", dims.context_length)
    metadata.u32(f"{arch}.embedding_length", dims.hidden_size)
    metadata.u32(f"{arch}.feed_forward_length", dims.intermediate_size)
    metadata.u32(f"{arch}.attention.head_count", dims.num_heads)
    metadata.u32(f"{arch}.attention.head_count_kv", dims.num_kv_heads)
    metadata.u32(f"{arch}.attention.key_length", dims.head_dim)
    metadata.u32(f"{arch}.attention.value_length", dims.head_dim)
    metadata.f32(f"{arch}.attention.layer_norm_rms_epsilon", dims.rms_norm_eps)
    metadata.u32(f"{arch}.rope.dimension_count", dims.head_dim)
    metadata.f32(f"{arch}.rope.freq_base", dims.rope_theta)
    metadata.u32(f"{arch}.vocab_size", dims.vocab_size)
    metadata.u32(f"{arch}.expert_count", dims.num_experts)
    metadata.u32(f"{arch}.expert_used_count", dims.num_experts_per_tok)
    if arch == "qwen3moe":
        metadata.u32(f"{arch}.expert_feed_forward_length", dims.moe_intermediate_size)
    if dims.norm_topk_prob is not None:
        metadata.boolean(f"{arch}.expert_weights_norm", dims.norm_topk_prob)
