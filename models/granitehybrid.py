"""`granitehybrid`: IBM Granite 4.0 H with experts. Its own: Mamba-2 layers in attention's place in most layers, and
attention that knows no positions unless the file says so; constant factors and a shared expert are `granitemoe`'s.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block, SelfAttention
from models.mamba2 import Mamba2
from models.model import Model
from models.ungated_moe import ungated_moe
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `granitehybrid` file. Raises GGUFError for a missing or misshapen one."""
    blk = []
    for layer in range(config.num_layers):
        mixer = _mixer(source, config, layer)
        blk.append(Block(mixer, ungated_moe(source, config, layer), config.residual_scale))
    return Model.read(source, config, blk)


def _mixer(source: WeightSource, config: ModelConfig, layer: int) -> SelfAttention:
    if config.memory_of(layer).state:
        return Mamba2.read(source, config, layer)
    return Attention.read(source, config, layer)
