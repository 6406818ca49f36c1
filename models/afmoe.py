"""`afmoe`: Arcee's Trinity. Its own: three layers of four have a sliding window and rotate, the others see everything
and do not; a sigmoid gate on attention's output; a norm behind each half; experts are scored by sigmoid with a bias
that enters the choice only, beside ungated shared ones, behind first layers that are dense.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.ungated_moe import ungated_moe
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of an `afmoe` file. Raises GGUFError for a missing or misshapen one."""
    return Model.read(source, config, [_block(source, config, layer) for layer in range(config.num_layers)])


def _block(source: WeightSource, config: ModelConfig, layer: int) -> Block:
    blk, hidden = f"blk.{layer}", config.hidden_size
    attn = Attention.read(source, config, layer, qk_norm="head")
    attn.output_gate = source.matrix(f"{blk}.attn_gate.weight", config.num_heads * config.head_dim, hidden)
    attn.post_attention_norm = source.vector(f"{blk}.post_attention_norm.weight", hidden)
    ffn = ungated_moe(source, config, layer)
    ffn.post_ffw_norm = source.vector(f"{blk}.post_ffw_norm.weight", hidden)
    return Block(attn, ffn)
