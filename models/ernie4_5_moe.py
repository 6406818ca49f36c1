"""`ernie4_5-moe`: ERNIE 4.5 with experts. Its own: neighbouring components rotate as a pair, and experts are scored by
softmax with a bias that enters the choice only, beside an ungated shared one, behind first layers that are dense.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.ungated_moe import ungated_moe
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of an `ernie4_5-moe` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(Attention.read(source, config, layer), ungated_moe(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
