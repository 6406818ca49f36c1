"""The short convolution that stands in attention's place in most layers of LFM2: each channel over its last few inputs,
gated before and behind. What it keeps of a sequence does not grow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.backend import Array, Backend, RopeTable, Weight
from models.config import ModelConfig
from models.kv_cache import RecurrentLayer
from models.weights import WeightSource


@dataclass(slots=True)
class ShortConv:
    """`in_proj` makes the gate before, the gate behind and the inputs, D rows each; `conv` float32 [K, D], the file's
    shortconv.conv turned.
    """

    attn_norm: Array
    in_proj: Weight
    conv: Array
    out_proj: Weight
    norm_eps: float

    @classmethod
    def read(cls, source: WeightSource, config: ModelConfig, layer: int) -> ShortConv:
        """Take the tensors of `layer`. Raises GGUFError for a missing or misshapen one."""
        blk, hidden = f"blk.{layer}", config.hidden_size
        ((history, _),) = config.memory_of(layer).state
        conv = source.host_matrix(f"{blk}.shortconv.conv.weight", hidden, history + 1)
        return cls(
            attn_norm=source.vector(f"{blk}.attn_norm.weight", hidden),
            in_proj=source.matrix(f"{blk}.shortconv.in_proj.weight", 3 * hidden, hidden),
            conv=source.backend.from_host(np.ascontiguousarray(conv.T)),
            out_proj=source.matrix(f"{blk}.shortconv.out_proj.weight", hidden, hidden),
            norm_eps=config.rms_norm_eps,
        )

    def __call__(self, backend: Backend, x: Array, kept: RecurrentLayer, rope: RopeTable, start: int) -> Array:
        """What the layer adds to the residual x [T, D]; `kept` goes on by T tokens. Positions mean nothing to it."""
        a = backend.norm(x, self.attn_norm, self.norm_eps, readers=(self.in_proj,))
        rows, hidden = backend.linear(a, self.in_proj), x.shape[1]
        before, behind, inputs = rows[:, :hidden], rows[:, hidden : 2 * hidden], rows[:, 2 * hidden :]
        (state,) = kept.arrays
        inputs *= before
        mixed = backend.causal_conv(inputs, self.conv, state, silu=False)
        mixed *= behind
        return backend.linear(backend.activations(mixed), self.out_proj)
