"""The gated delta net (arXiv 2412.06464) that stands in attention's place in the hybrid models: a short convolution,
the delta rule over one matrix a head, and a gated norm. What it keeps of a sequence does not grow.

Files of `qwen3next` hold query, key and value heads in the order of the key heads, those of `qwen35moe` hold value
heads round the key heads; older `qwen3next` files have one matrix `ssm_in` for what newer ones split in two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.backend import Array, Backend, RopeTable, Weight
from kernels.delta_rule import DeltaRule
from models.config import ModelConfig
from models.config_recurrent import DeltaNetConfig
from models.kv_cache import RecurrentLayer
from models.weights import WeightSource, grouped_rows, rows_of


@dataclass(slots=True)
class GatedDeltaNet:
    """`attn_qkv` rows [q | k | v], `attn_gate` the output gate, `ssm_beta` and `ssm_alpha` one row a head; `conv1d`
    float32 [K, C], the file's ssm_conv1d turned.
    """

    attn_norm: Array
    attn_qkv: Weight
    attn_gate: Weight
    ssm_beta: Weight
    ssm_alpha: Weight
    conv1d: Array
    rule: DeltaRule
    ssm_norm: Array
    ssm_out: Weight
    norm_eps: float

    @classmethod
    def read(cls, source: WeightSource, config: ModelConfig, layer: int, tiled: bool) -> GatedDeltaNet:
        """Take the tensors of `layer`; `tiled` see `DeltaRule`. Raises GGUFError for a missing or misshapen one."""
        net, blk, hidden = config.delta_net, f"blk.{layer}", config.hidden_size
        if net is None:
            raise ValueError(f"{config.architecture} has no gated delta net")
        qkv, gate = _qkv_and_gate(source, net, blk, hidden)
        beta, alpha = _beta_and_alpha(source, net, blk, hidden)
        conv1d = source.host_matrix(f"{blk}.ssm_conv1d.weight", net.conv_width, net.conv_kernel)
        return cls(
            attn_norm=source.vector(f"{blk}.attn_norm.weight", hidden),
            attn_qkv=qkv,
            attn_gate=gate,
            ssm_beta=beta,
            ssm_alpha=alpha,
            conv1d=source.backend.from_host(np.ascontiguousarray(conv1d.T)),
            rule=DeltaRule(
                num_key_heads=net.num_key_heads,
                num_heads=net.num_heads,
                key_dim=net.key_dim,
                value_dim=net.value_dim,
                decay=source.vector(f"{blk}.ssm_a", net.num_heads),
                dt_bias=source.vector(f"{blk}.ssm_dt.bias", net.num_heads),
                tiled=tiled,
            ),
            ssm_norm=source.vector(f"{blk}.ssm_norm.weight", net.value_dim),
            ssm_out=source.matrix(f"{blk}.ssm_out.weight", hidden, net.value_width),
            norm_eps=config.rms_norm_eps,
        )

    def __call__(self, backend: Backend, x: Array, kept: RecurrentLayer, rope: RopeTable, start: int) -> Array:
        """What the layer adds to the residual x [T, D]; `kept` goes on by T tokens. Positions mean nothing to it."""
        weights = (self.attn_qkv, self.attn_gate, self.ssm_beta, self.ssm_alpha)
        a = backend.norm(x, self.attn_norm, self.norm_eps, readers=weights)
        rows = backend.linear(a, *weights)
        ends = np.cumsum([weight.n_rows for weight in weights]).tolist()
        qkv, gate, beta, alpha = (
            rows[:, stop - weight.n_rows : stop] for weight, stop in zip(weights, ends, strict=True)
        )
        conv_state, memory = kept.arrays
        mixed = backend.causal_conv(qkv, self.conv1d, conv_state, silu=True)
        out = backend.delta_rule(mixed, beta, alpha, self.rule, memory)
        out = backend.gated_norm(out, gate, self.ssm_norm, self.norm_eps)
        return backend.linear(backend.activations(out), self.ssm_out)


def _qkv_and_gate(source: WeightSource, net: DeltaNetConfig, blk: str, hidden: int) -> tuple[Weight, Weight]:
    conv, value = net.conv_width, net.value_width
    if not source.has(f"{blk}.ssm_in.weight"):
        qkv = source.matrix(f"{blk}.attn_qkv.weight", conv, hidden)
        return qkv, source.matrix(f"{blk}.attn_gate.weight", value, hidden)
    own = value // net.num_key_heads  # values, and gates, of one key head
    order = grouped_rows(net.num_key_heads, (net.key_dim, net.key_dim, own, own))
    both = source.matrix(f"{blk}.ssm_in.weight", conv + value, hidden, order)
    return rows_of(both, 0, conv), rows_of(both, conv, conv + value)


def _beta_and_alpha(source: WeightSource, net: DeltaNetConfig, blk: str, hidden: int) -> tuple[Weight, Weight]:
    heads = net.num_heads
    if not source.has(f"{blk}.ssm_ba.weight"):
        beta = source.matrix(f"{blk}.ssm_beta.weight", heads, hidden)
        return beta, source.matrix(f"{blk}.ssm_alpha.weight", heads, hidden)
    own = heads // net.num_key_heads
    both = source.matrix(f"{blk}.ssm_ba.weight", 2 * heads, hidden, grouped_rows(net.num_key_heads, (own, own)))
    return rows_of(both, 0, heads), rows_of(both, heads, 2 * heads)
