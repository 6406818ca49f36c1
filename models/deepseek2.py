"""`deepseek2`: DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437) and their relatives, among them Moonlight, Kimi and
GLM-4.7-Flash.

Its own: latent attention, dense first layers, a shared expert that every token passes ungated. V2 scores experts by
softmax, V3 by sigmoid with a bias that enters the choice only; both may choose groups of experts first.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.latent_attention import LatentAttention
from models.layers import Block
from models.model import Model
from models.ungated_moe import ungated_moe
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `deepseek2` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(attn=LatentAttention.read(source, config, layer), ffn=ungated_moe(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
