"""`lfm2moe`: Liquid's LFM2 with experts (arXiv 2511.23404). Its own: short convolutions in attention's place in most
layers; experts scored by sigmoid with a bias that enters the choice only; dense first layers; and the norm before the
output is called token_embd_norm.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block, DenseFFN, FeedForward, SelfAttention
from models.model import Model
from models.moe import MoE
from models.short_conv import ShortConv
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of an `lfm2moe` file. Raises GGUFError for a missing or misshapen one."""
    blk = [Block(_mixer(source, config, n), _feed_forward(source, config, n)) for n in range(config.num_layers)]
    return Model.read(source, config, blk, output_norm="token_embd_norm")


def _mixer(source: WeightSource, config: ModelConfig, layer: int) -> SelfAttention:
    if config.memory_of(layer).state:
        return ShortConv.read(source, config, layer)
    return Attention.read(source, config, layer, qk_norm="head")


def _feed_forward(source: WeightSource, config: ModelConfig, layer: int) -> FeedForward:
    if layer in config.moe_layers:
        return MoE.read(source, config, layer)
    return DenseFFN.read(source, config, layer)
