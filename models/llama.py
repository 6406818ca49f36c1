"""`llama` with experts: Mixtral (arXiv 2401.04088). Its own: neighbouring components rotate as a pair.

Files of this architecture hold the rows of attn_q and attn_k in an order that makes it so. A file may carry divisors
of the rotation's frequencies (`rope_freqs.weight`) and a sliding window.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `llama` file. Raises GGUFError for a missing or misshapen one."""
    blk = [
        Block(attn=Attention.read(source, config, layer), ffn=MoE.read(source, config, layer))
        for layer in range(config.num_layers)
    ]
    return Model.read(source, config, blk)
