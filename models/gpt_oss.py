"""`gpt-oss`: OpenAI's gpt-oss-20b and 120b (arXiv 2508.10925). Its own: every other layer sees a sliding window, each
head has an attention sink, attention, router and experts have biases, the experts' unit is clamped, and the router
weighs the chosen experts by a softmax over them alone.

YaRN's ramp is not rounded to whole components, as the models were trained; no key of a file says so.
"""

from __future__ import annotations

from kernels.backend import GatedUnit
from models.config import ModelConfig
from models.layers import Attention, Block
from models.model import Model
from models.moe import MoE
from models.weights import WeightSource

FFN_NORM = "post_attention_norm"  # what these files call ffn_norm
SWIGLU_ALPHA = 1.702


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `gpt-oss` file. Raises GGUFError for a missing or misshapen one."""
    unit = GatedUnit("clamped", SWIGLU_ALPHA, config.swiglu_limit)
    blk = []
    for layer in range(config.num_layers):
        attn = Attention.read(source, config, layer, bias=True, output_bias=True)
        attn.attn_sinks = source.vector(f"blk.{layer}.attn_sinks.weight", config.num_heads)
        blk.append(Block(attn, MoE.read(source, config, layer, norm=FFN_NORM, unit=unit, biased=True)))
    return Model.read(source, config, blk)
