"""`granitemoe`: IBM Granite MoE. Its own: constant factors on the embedding, on what each half of a block adds, on the
attention scores and on the logits; the rotation is `llama`'s. Some files have a shared expert, without a gate.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.ungated_moe import ungated_moe
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `granitemoe` file. Raises GGUFError for a missing or misshapen one."""
    blk = []
    for layer in range(config.num_layers):
        attn = Attention.read(source, config, layer)
        blk.append(Block(attn, ungated_moe(source, config, layer), config.residual_scale))
    return Model.read(source, config, blk)
