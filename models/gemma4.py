"""`gemma4` with experts: Gemma 4 26B-A4B. Its own: layers with a sliding window have another shape of heads and
another rotation than the others; norms on queries, keys and values and no scale on their product; values that are the
keys where a layer has no matrix for them; norms behind each half of a block too; a dense feed-forward beside the
experts; a factor on each layer's stream; a soft cap on the logits.

Its relatives that hand tokens to every layer anew, or share keys and values among layers, have no experts and are
refused.
"""

from __future__ import annotations

import numpy as np

from models.config import ModelConfig
from models.gemma4_feed_forward import GemmaFeedForward
from models.layers import Attention, Block
from models.model import Model
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `gemma4` file. Raises GGUFError for a missing or misshapen one."""
    return Model.read(source, config, [_block(source, config, layer) for layer in range(config.num_layers)])


def _block(source: WeightSource, config: ModelConfig, layer: int) -> Block:
    blk = f"blk.{layer}"
    attn = Attention.read(source, config, layer, qk_norm="head", value=source.has(f"{blk}.attn_v.weight"))
    attn.attn_v_norm = source.backend.from_host(np.ones(config.memory_of(layer).value_dim, np.float32))
    attn.post_attention_norm = source.vector(f"{blk}.post_attention_norm.weight", config.hidden_size)
    block = Block(attn, GemmaFeedForward.read(source, config, layer))
    if source.has(f"{blk}.layer_output_scale.weight"):
        block.output_scale = float(source.host_vector(f"{blk}.layer_output_scale.weight", 1)[0])
    return block
