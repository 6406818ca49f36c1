"""Who chooses and computes the experts of a layer: the seam between a model's maths and the runtime's residency.

Model code calls `select`, then `compute`; it never knows where an expert lies. `models.resident.ResidentExperts` is
the plain implementation (everything in memory, exact routing) that defines the answer; the runtime's controller
streams and must equal it bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernels.backend import SILU, Activations, Array, Backend, ExpertBiases, ExpertTable, GatedUnit, Weight
from kernels.router_spec import RouterSpec
from models.stream_norm import normed


@dataclass(frozen=True, slots=True)
class RouterWeights:
    """What choosing the experts of one MoE layer needs, and what computing them needs beside their matrices;

    handed to predictors too, which apply a later layer's router early.
    """

    layer: int
    spec: RouterSpec
    ffn_norm: Array  # float32 [D]
    norm_eps: float
    ffn_gate_inp: Weight  # [E, D]
    exp_probs_b: Array | None = None  # float32 [E], enters the selection only
    ffn_gate_inp_b: Array | None = None  # float32 [E], part of the logits
    ffn_norm_b: Array | None = None  # float32 [D]: then the norm takes the mean off, and adds this
    unit: GatedUnit = SILU
    biases: ExpertBiases | None = None

    def complete(self, table: ExpertTable) -> None:
        """Tell the slot table of this layer what its experts compute beside their matrices (mutates `table`)."""
        table.unit, table.biases = self.unit, self.biases

    def normed(self, backend: Backend, residual: Array) -> Activations:
        """The router's input of residual rows [T, D]."""
        return normed(backend, residual, self.ffn_norm, self.ffn_norm_b, self.norm_eps, (self.ffn_gate_inp,))

    def logits(self, backend: Backend, a: Activations) -> Array:
        """Router logits float32 [T, E] of the normed rows `a`."""
        return backend.linear(a, self.ffn_gate_inp, bias=self.ffn_gate_inp_b)


@dataclass(slots=True)
class Routing:
    """topk_ids int32 [T, K], topk_weights float32 [T, K], host arrays; rank order (descending selection score)."""

    topk_ids: np.ndarray
    topk_weights: np.ndarray


class ExpertProvider(Protocol):
    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        """Called once before each forward call; `phase` is "prefill" or "decode";

        `start` the context position of the first token.
        """
        ...

    def select(self, layer: int, residual: Array, a: Activations, router_logits: Array) -> Routing:
        """Choose experts. `residual` [T, D] is the stream before ffn_norm, `a` the normed router input,
        `router_logits` float32 [T, E].
        """
        ...

    def compute(self, layer: int, a: Activations, routing: Routing) -> Array:
        """The routed experts' weighted sum, float32 [T, D], which the caller may write to."""
        ...

    def end(self) -> None:
        """Called once after each forward call (also after a failed one)."""
        ...
