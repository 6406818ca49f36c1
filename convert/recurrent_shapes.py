"""Parts of `convert.synth_shapes` for models with layers that carry a state. Sizes are those of the published
config.json.
"""

from __future__ import annotations

from convert.model_metadata import ConstantFactors, ModelDims
from models.config_mamba import Mamba2Config
from models.config_recurrent import DeltaNetConfig


def qwen_delta_net(num_layers: int) -> DeltaNetConfig:
    """Qwen's: attention in every fourth layer."""
    return DeltaNetConfig(
        layers=tuple((layer + 1) % 4 != 0 for layer in range(num_layers)), conv_kernel=4, num_key_heads=16,
        num_heads=32, key_dim=128, value_dim=128,
    )  # fmt: skip

def granite_h(
    hidden_size: int, num_heads: int, num_kv_heads: int, width: int, num_experts: int, num_experts_per_tok: int,
    logits: float,
) -> ModelDims:  # fmt: skip
    """Granite 4.0 H: attention in four layers of 40; the shared expert is two routed ones wide."""
    layers = tuple(layer not in (5, 15, 25, 35) for layer in range(40))
    return ModelDims(
        architecture="granitehybrid", hidden_size=hidden_size, num_layers=40, num_heads=num_heads,
        num_kv_heads=num_kv_heads, head_dim=128, intermediate_size=width, moe_intermediate_size=width,
        num_experts=num_experts, num_experts_per_tok=num_experts_per_tok, vocab_size=100352, context_length=131072,
        rope_theta=1e4, rms_norm_eps=1e-5, shared_intermediate_size=2 * width, rotates=False, conv_bias=True,
        factors=ConstantFactors(attention=0.0078125, embedding=12.0, residual=0.22, logits=logits),
        mamba=Mamba2Config(
            layers, conv_kernel=4, num_groups=1, num_heads=hidden_size // 32, state_size=128, head_dim=64
        ),
    )  # fmt: skip
