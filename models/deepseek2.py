"""`deepseek2`: DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437) and their relatives, Moonlight and Kimi among them.

Its own: latent attention, dense first layers, a shared expert that every token passes ungated. V2 scores experts by
softmax, V3 by sigmoid with a bias that enters the choice only; both may choose groups of experts first.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.latent_attention import LatentAttention
from models.layers import Block, DenseFFN, FeedForward
from models.model import Model
from models.moe import MoE
from models.shared_expert import SharedExpert
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `deepseek2` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(attn=LatentAttention.read(source, config, layer), ffn=_feed_forward(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)


def _feed_forward(source: WeightSource, config: ModelConfig, layer: int) -> FeedForward:
    if layer not in config.moe_layers:
        return DenseFFN.read(source, config, layer)
    shared = SharedExpert.read(source, config, layer, gated=False) if config.shared_intermediate_size else None
    return MoE.read(source, config, layer, shared)
