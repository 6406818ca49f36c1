"""Feed-forward of a layer whose experts stand beside an ungated shared one, or of a dense layer before the first such:
DeepSeek's, which GLM-4.5, dots.llm1, ERNIE 4.5, Hunyuan, Trinity, K-EXAONE and Granite took over.
"""

from __future__ import annotations

from models.config import ModelConfig
from models.layers import DenseFFN
from models.moe import MoE
from models.shared_expert import SharedExpert
from models.weights import WeightSource


def ungated_moe(source: WeightSource, config: ModelConfig, layer: int, norm: str = "ffn_norm") -> DenseFFN | MoE:
    """Take the feed-forward tensors of `layer`, dense where the config says so; `norm` is what the file calls ffn_norm.

    Raises GGUFError for a missing or misshapen tensor.
    """
    if layer not in config.moe_layers:
        return DenseFFN.read(source, config, layer, norm)
    shared = SharedExpert.read(source, config, layer, gated=False) if config.shared_intermediate_size else None
    return MoE.read(source, config, layer, shared, norm)
