"""`qwen3next`: Qwen3-Next. Its own: attention in every fourth layer only, with a gate on its output that the query
matrix makes too; gated delta nets in the others; half or a quarter of each head rotates; a gated shared expert.

`qwen35moe` (Qwen3.5 and 3.6 with experts, their text half) is built alike: the delta nets' heads lie in another order,
and files state the sections of a rotation that is an ordinary one for text. Layers for predicting several tokens at
once, which such files may carry at their end, are not loaded.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.delta_net import GatedDeltaNet
from models.layers import Attention, Block, SelfAttention
from models.model import Model
from models.moe import MoE
from models.shared_expert import SharedExpert
from models.weights import WeightSource

FFN_NORM = "post_attention_norm"  # what these files call ffn_norm


def build(source: WeightSource, config: ModelConfig) -> Model:
    """Take every non-expert tensor of a `qwen3next` file. Raises GGUFError for a missing or misshapen one."""
    return build_hybrid(source, config, tiled=False)


def build_hybrid(source: WeightSource, config: ModelConfig, tiled: bool) -> Model:
    """The model of either architecture; `tiled` is how the delta nets' value heads lie, see `DeltaRule`."""
    blk = []
    for layer in range(config.num_layers):
        shared = SharedExpert.read(source, config, layer, gated=True)
        ffn = MoE.read(source, config, layer, shared, FFN_NORM)
        blk.append(Block(_mixer(source, config, layer, tiled), ffn))
    return Model.read(source, config, blk)


def _mixer(source: WeightSource, config: ModelConfig, layer: int, tiled: bool) -> SelfAttention:
    if config.memory_of(layer).state:
        return GatedDeltaNet.read(source, config, layer, tiled)
    return Attention.read(source, config, layer, qk_norm="head", output_gate=True)
