"""`granitemoe`: IBM Granite MoE. Its own: constant factors on the embedding, on what each half of a block adds, on the
attention scores and on the logits; the rotation is `llama`'s. Some files have a shared expert, without a gate.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE
from models.shared_expert import SharedExpert
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `granitemoe` file. Raises GGUFError for a missing or misshapen one."""
    blk = []
    for layer in range(config.num_layers):
        shared = SharedExpert.read(source, config, layer, gated=False) if config.shared_intermediate_size else None
        ffn = MoE.read(source, config, layer, shared)
        blk.append(Block(Attention.read(source, config, layer), ffn, config.residual_scale))
    return Model.read(source, config, blk)
