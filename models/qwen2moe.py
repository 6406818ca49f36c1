"""`qwen2moe`: Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671). Its own: biases on query, key and value, and a shared
expert whose output a sigmoid gate of the token weighs.

The router's weights are not normalised over the chosen experts unless the file says so.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE
from models.shared_expert import SharedExpert
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `qwen2moe` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(
            attn=Attention.read(source, config, layer, bias=True),
            ffn=MoE.read(source, config, layer, shared=SharedExpert.read(source, config, layer, gated=True)),
        )
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
