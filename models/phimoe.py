"""`phimoe`: Phi-3.5-MoE (arXiv 2404.14219). Its own: norms that take the mean off and have a bias, biases on attention
and on the output matrix, two experts a token weighed by SparseMixer's rule, and frequencies divided by one list for
contexts up to the original length and by another for longer ones.

Which list holds is decided once, by the length that the cache is made for, as llama.cpp does: keys that were rotated by
one cannot be compared with queries rotated by the other.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE
from models.weights import WeightSource


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `phimoe` file. Raises GGUFError for a missing or misshapen one."""
    blk = []
    for layer in range(config.num_layers):
        biased = source.has(f"blk.{layer}.attn_q.bias")
        attn = Attention.read(source, config, layer, bias=biased, output_bias=biased)
        attn.attn_norm_b = source.vector(f"blk.{layer}.attn_norm.bias", config.hidden_size)
        blk.append(Block(attn, MoE.read(source, config, layer)))
    return Model.read(source, config, blk)
