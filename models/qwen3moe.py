"""`qwen3moe`: Qwen3-MoE (arXiv 2505.09388). Its own: a query and a key norm of head width, alike for each head.

The head width is stored, not hidden size / heads; the router's weights are normalised over the chosen experts.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `qwen3moe` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(attn=Attention.read(source, config, layer, qk_norm="head"), ffn=MoE.read(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
