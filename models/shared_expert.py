"""The shared expert: a dense feed-forward beside the routed ones, that every token passes; weighted by a gate in some
architectures. The router's scale never touches it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.backend import Activations, Array, Backend, Weight
from models.config import ModelConfig
from models.weights import WeightSource


@dataclass(slots=True)
class SharedExpert:
    """`ffn_gate_inp_shexp` [1, D] is the gate of Qwen's shared expert; without one the factor is 1."""

    ffn_gate_shexp: Weight
    ffn_up_shexp: Weight
    ffn_down_shexp: Weight
    ffn_gate_inp_shexp: Weight | None = None

    @classmethod
    def read(cls, source: WeightSource, config: ModelConfig, layer: int, gated: bool) -> SharedExpert:
        """Take the shared expert's tensors of `layer`; `gated`: the file must hold its gate."""
        blk, hidden, width = f"blk.{layer}", config.hidden_size, config.shared_intermediate_size
        return cls(
            ffn_gate_shexp=source.matrix(f"{blk}.ffn_gate_shexp.weight", width, hidden),
            ffn_up_shexp=source.matrix(f"{blk}.ffn_up_shexp.weight", width, hidden),
            ffn_down_shexp=source.matrix(f"{blk}.ffn_down_shexp.weight", hidden, width),
            ffn_gate_inp_shexp=source.matrix(f"{blk}.ffn_gate_inp_shexp.weight", 1, hidden) if gated else None,
        )

    def __call__(self, backend: Backend, a: Activations) -> Array:
        """sigmoid(gate) * feed-forward of the normed rows `a`: float32 [T, D]."""
        out = backend.gated_mlp(a, self.ffn_gate_shexp, self.ffn_up_shexp, self.ffn_down_shexp)
        if self.ffn_gate_inp_shexp is None:
            return out
        return backend.sigmoid_gate(out, backend.linear(a, self.ffn_gate_inp_shexp))
