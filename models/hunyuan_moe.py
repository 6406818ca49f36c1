"""`hunyuan-moe`: Hunyuan-A13B. Its own: the query and key norms of each head come behind the rotation; experts are
scored by softmax, and an ungated shared one passes every token.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.ungated_moe import ungated_moe
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `hunyuan-moe` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(Attention.read(source, config, layer, qk_norm="rotated"), ungated_moe(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
