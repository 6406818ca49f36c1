"""The Mamba-2 layer (arXiv 2405.21060) that stands in attention's place in hybrid models: a short convolution, the
selective scan over one matrix a head, and a norm of each group behind a gate. What it keeps of a sequence does not
grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.backend import Array, Backend, RopeTable, Weight
from kernels.selective_scan import SelectiveScan
from models.config import ModelConfig
from models.config_mamba import Mamba2Config
from models.kv_cache import RecurrentLayer
from models.weights import WeightSource


@dataclass(slots=True)
class Mamba2:
    """`ssm_in` makes rows [gate | x | B | C | step a head]; `conv1d` float32 [K, C], the file's ssm_conv1d turned.

    `ssm_norm` float32 [inner]: each group's own part; `ones`: the weight by which a group is normed before, None where
    there is one group, whose weight is `ssm_norm` itself.
    """

    attn_norm: Array
    ssm_in: Weight
    conv1d: Array
    conv1d_b: Array | None
    scan: SelectiveScan
    ssm_norm: Array
    ones: Array | None
    ssm_out: Weight
    norm_eps: float

    @classmethod
    def read(cls, source: WeightSource, config: ModelConfig, layer: int) -> Mamba2:
        """Take the tensors of `layer`. Raises GGUFError for a missing or misshapen one."""
        net, blk, hidden, backend = config.mamba, f"blk.{layer}", config.hidden_size, source.backend
        if net is None:
            raise ValueError(f"{config.architecture} has no Mamba-2 layers")
        group = net.inner_width // net.num_groups
        conv1d = source.host_matrix(f"{blk}.ssm_conv1d.weight", net.conv_width, net.conv_kernel)
        norm = source.host_matrix(f"{blk}.ssm_norm.weight", net.num_groups, group)
        bias = f"{blk}.ssm_conv1d.bias"
        return cls(
            attn_norm=source.vector(f"{blk}.attn_norm.weight", hidden),
            ssm_in=source.matrix(f"{blk}.ssm_in.weight", net.projected_width, hidden),
            conv1d=backend.from_host(np.ascontiguousarray(conv1d.T)),
            conv1d_b=source.vector(bias, net.conv_width) if source.has(bias) else None,
            scan=_scan(source, net, blk),
            ssm_norm=backend.from_host(norm.reshape(-1)),
            ones=None if net.num_groups == 1 else backend.from_host(np.ones(group, np.float32)),
            ssm_out=source.matrix(f"{blk}.ssm_out.weight", hidden, net.inner_width),
            norm_eps=config.rms_norm_eps,
        )

    def __call__(self, backend: Backend, x: Array, kept: RecurrentLayer, rope: RopeTable, start: int) -> Array:
        """What the layer adds to the residual x [T, D]; `kept` goes on by T tokens. Positions mean nothing to it."""
        a = backend.norm(x, self.attn_norm, self.norm_eps, readers=(self.ssm_in,))
        rows = backend.linear(a, self.ssm_in)
        inner, steps = self.ssm_out.n_cols, self.ssm_in.n_rows - self.scan.num_heads
        gate, inputs, dt = rows[:, :inner], rows[:, inner:steps], rows[:, steps:]
        conv_state, memory = kept.arrays
        mixed = backend.causal_conv(inputs, self.conv1d, conv_state, silu=True, bias=self.conv1d_b)
        out = backend.selective_scan(mixed, dt, self.scan, memory)
        out = self._normed(backend, out, gate)
        return backend.linear(backend.activations(out), self.ssm_out)

    def _normed(self, backend: Backend, out: Array, gate: Array) -> Array:
        """The RMS norm of silu(gate) * out, group by group, in the memory of `out`."""
        out = backend.sigmoid_gate(out, gate)
        out *= gate
        if self.ones is None:
            return backend.head_norm(out, self.ssm_norm, self.norm_eps)
        out = backend.head_norm(out, self.ones, self.norm_eps)
        out *= self.ssm_norm
        return out


def _scan(source: WeightSource, net: Mamba2Config, blk: str) -> SelectiveScan:
    heads = net.num_heads
    return SelectiveScan(
        num_groups=net.num_groups,
        num_heads=heads,
        state_size=net.state_size,
        head_dim=net.head_dim,
        decay=source.vector(f"{blk}.ssm_a", heads),
        dt_bias=source.vector(f"{blk}.ssm_dt.bias", heads),
        skip=source.vector(f"{blk}.ssm_d", heads),
    )
