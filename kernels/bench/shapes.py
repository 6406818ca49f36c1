"""The model shapes that ops are timed on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model: what a layer's ops read."""

    name: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    vocab_size: int


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("olmoe-1b-7b", 2048, 16, 16, 128, 1024, 64, 8, 50304),
        Shape("qwen3-30b-a3b", 2048, 32, 4, 128, 768, 128, 8, 151936),
    )
}
