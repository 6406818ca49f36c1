"""The shapes of known Mixture-of-Experts models, as data: what `pearl synth` can imitate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes from the model's published config.json.

    `qk_norm`: "none" | "head" (per head_dim) | "full" (over all heads).
    """

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    vocab_size: int
    context_length: int
    rope_theta: float
    rms_norm_eps: float
    qk_norm: str
    pre_tokenizer: str  # "spm" for a SentencePiece-style vocabulary


SHAPES = {
    "olmoe-1b-7b": Shape("olmoe", 2048, 16, 16, 16, 128, 1024, 64, 8, 50304, 4096, 1e4, 1e-5, "full", "olmo"),
    "qwen3-30b-a3b": Shape("qwen3moe", 2048, 48, 32, 4, 128, 768, 128, 8, 151936, 40960, 1e6, 1e-6, "head", "qwen2"),
    "mixtral-8x7b": Shape("llama", 4096, 32, 32, 8, 128, 14336, 8, 2, 32000, 32768, 1e6, 1e-5, "none", "spm"),
}
