"""`exaone-moe`: K-EXAONE. Its own: most layers have a sliding window and rotate, the others see everything and do not;
DeepSeek-V3's experts, scored by sigmoid with a bias that enters the choice only, beside ungated shared ones, behind
first layers that are dense.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.ungated_moe import ungated_moe
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of an `exaone-moe` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(Attention.read(source, config, layer, qk_norm="head"), ungated_moe(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
