"""`glm4moe`: GLM-4.5 and GLM-4.5-Air (arXiv 2508.06471). Its own: half of each head rotates, experts are scored by
sigmoid with a bias that enters the choice only, the first layers are dense, and a shared expert passes every token
ungated.

Query and key norms and the attention biases are there in some sizes and not in others: the file's tensors say which.
Layers for predicting several tokens at once, which such files carry at their end, are not loaded.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.ungated_moe import ungated_moe
from models.weights import WeightSource

FFN_NORM = "post_attention_norm"  # what these files call ffn_norm


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `glm4moe` file. Raises GGUFError for a missing or misshapen one."""
    blk = []
    for layer in range(config.num_layers):
        qk_norm = "head" if source.has(f"blk.{layer}.attn_q_norm.weight") else "none"
        bias = source.has(f"blk.{layer}.attn_q.bias")
        attn = Attention.read(source, config, layer, qk_norm, bias)
        blk.append(Block(attn=attn, ffn=ungated_moe(source, config, layer, FFN_NORM)))
    return Model.read(source, config, blk)
