"""`minimax-m2`: MiniMax-M2. Its own: a query and a key norm over all heads together, half of each head rotates, and
experts are scored by sigmoid with a bias that enters the choice only; there is no shared expert.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `minimax-m2` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(attn=Attention.read(source, config, layer, qk_norm="row"), ffn=MoE.read(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
