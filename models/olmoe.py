"""`olmoe`: OLMoE (arXiv 2409.02060). Its own: query and key norms run over all heads together, before the rotation.

The router's weights are not normalised over the chosen experts unless the file says so.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of an `olmoe` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(attn=Attention.read(source, config, layer, qk_norm="row"), ffn=MoE.read(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
