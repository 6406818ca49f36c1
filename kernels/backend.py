"""The op set that model code is written against, once for every device.

`Array` is a numpy array on the CPU and a torch tensor on a GPU. Model code touches arrays only through these ops,
slicing, `+` and `*`, the last two also in place on what an op has given back.
Shape letters: T tokens of this call, D hidden width, H query heads, G key/value heads, d head width, E experts of a
layer, K experts per token, F expert width, N output rows, P routed (token, rank) pairs = T * K.
Implementations: `kernels.reference.backend.ReferenceBackend` (defines every answer),
`kernels.cpu.backend.CpuBackend` (numba).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kernels.quant_types import QuantType, row_bytes
from kernels.recurrent_ops import RecurrentOps
from kernels.router_spec import RouterSpec

Array = Any


class NotNumbersError(ValueError):
    """Router logits among which no choice can be made, since they are NaN."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [n_rows, n_cols] as GGUF blocks: `data` is uint8 [n_rows, row_bytes], never unpacked."""

    data: Array
    quant_type: QuantType
    n_rows: int
    n_cols: int

    @property
    def n_bytes(self) -> int:
        return self.n_rows * row_bytes(self.quant_type, self.n_cols)


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin, float32 [max_positions, n_rot / 2]; `interleaved` pairs (0,1),(2,3)..

    (llama), else (i, i + n_rot/2) (neox).
    """

    cos: Array
    sin: Array
    n_rot: int
    interleaved: bool


@dataclass(slots=True)
class KVLayer:
    """One layer's keys and values, head-major so that decoding reads each head once in order: [G, capacity, d] of
    `k_dtype` and [G, capacity, dv] of `v_dtype`, each of them

    "f32" | "f16" | "q8_0" (then [G, capacity, d // 32 * 34] uint8 blocks). `plans`: what a backend keeps of its calls
    over this layer, from call to call. `ring`: position p lies at
    p % capacity, over the one that was there before; only attention with a window can read it, and `capacity` is a
    multiple of 64.
    """

    k: Array
    v: Array
    k_dtype: str = "f16"
    v_dtype: str = "f16"
    ring: bool = False
    plans: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def capacity(self) -> int:
        """Positions that are stored."""
        return int(self.k.shape[1])


@dataclass(slots=True)
class Activations:
    """float32 rows that linear ops read, with the quantised forms that were made from them so far (filled by the
    backend).
    """

    x: Array  # [T, D] float32
    forms: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """The (token, rank) pairs of one call sorted by expert, see `kernels.grouping.group_by_expert`.

    expert_ids int32 [n_groups] distinct experts; offsets int32 [n_groups + 1]: group g owns pair rows
    offsets[g]:offsets[g+1]; token_ids int32 [P]: token of each pair row; pair_of int32 [T, K]: pair row of (token,
    rank).
    """

    expert_ids: np.ndarray
    offsets: np.ndarray
    token_ids: np.ndarray
    pair_of: np.ndarray


@dataclass(frozen=True, slots=True)
class GatedUnit:
    """How a feed-forward joins gate g and up u. kind "silu": silu(g) * u; "gelu": gelu(g) * u, by the tanh formula;
    "clamped": with g' = min(g, limit), g' * sigmoid(alpha * g') * (clamp(u, -limit, limit) + 1).
    """

    kind: str = "silu"
    alpha: float = 1.0
    limit: float = 0.0


SILU = GatedUnit()


@dataclass(frozen=True, slots=True)
class ExpertBiases:
    """What is added to each expert's products: gate and up float32 [E, F], down [E, D], contiguous."""

    gate: Array
    up: Array
    down: Array


@dataclass(slots=True)
class ExpertTable:
    """Where the three matrices of each expert of one layer lie now: the slot table.

    gate, up, down: int64 [E] addresses (CPU) or arena offsets (GPU), 0 while not resident; *_types: uint8 [E] ggml
    type ids, fixed.
    gate/up are [F, D] row-major blocks, down is [D, F]. The controller mutates the addresses, ops only read them.
    """

    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray
    gate_types: np.ndarray
    up_types: np.ndarray
    down_types: np.ndarray
    hidden_size: int
    intermediate_size: int
    unit: GatedUnit = SILU
    biases: ExpertBiases | None = None


class Backend(RecurrentOps, Protocol):
    """Ops never mutate their inputs unless the docstring says so; outputs are fresh or workspace arrays valid until
    the same op's next call
    *in another layer call*, so callers that keep a result across calls copy it."""

    name: str

    def from_host(self, array: np.ndarray) -> Array:
        """A float32/int array on this device; a plain CPU backend returns it unchanged."""
        ...

    def to_host(self, array: Array) -> np.ndarray: ...

    def weight(self, data: np.ndarray, quant_type: QuantType, n_rows: int, n_cols: int) -> Weight:
        """Wrap uint8 blocks (no copy on the CPU). Raises ValueError on a size that does not match."""
        ...

    def kv_layer(
        self, num_kv_heads: int, capacity: int, head_dim: int, value_dim: int, k_dtype: str, v_dtype: str
    ) -> KVLayer: ...

    def embed(self, table: Weight, token_ids: np.ndarray) -> Array:
        """Rows of `table` as float32 [T, D]; token_ids int64 [T]."""
        ...

    def norm(self, x: Array, weight: Array, eps: float, readers: Sequence[Weight] = ()) -> Activations:
        """RMS norm over the last axis in float32: x / sqrt(mean(x^2) + eps) * weight. `readers` are the weights that
        will be applied to it, so that the quantised forms they need are made in the same pass."""
        ...

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Activations:
        """Each row less its mean, normed as `norm` does, plus `bias`: (x - mean) / sqrt(var + eps) * weight + bias."""
        ...

    def head_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """RMS norm in place over consecutive runs of len(weight) in each row of x [T, n * len(weight)]; returns x."""
        ...

    def new_rows(self, n_rows: int, width: int) -> Array:
        """Float32 [n_rows, width] for the caller to fill."""
        ...

    def concatenate(self, rows: Sequence[Array]) -> Array:
        """Rows [T_i, D] one below another: fresh [sum T_i, D]."""
        ...

    def activations(self, x: Array) -> Activations:
        """Wrap float32 [T, D] for the linear ops."""
        ...

    def linear(self, a: Activations, *weights: Weight, bias: Array | None = None) -> Array:
        """a.x @ W^T for the row-wise concatenation of `weights` (e.g. q, k, v): float32 [T, sum n_rows];

        `bias` float32 [sum n_rows].
        """
        ...

    def gated_mlp(self, a: Activations, gate: Weight, up: Weight, down: Weight, unit: GatedUnit = SILU) -> Array:
        """Dense feed-forward: down(unit(gate x, up x)), float32 [T, D]."""
        ...

    def rope_write(self, q: Array, k: Array, v: Array, rope: RopeTable, start: int, cache: KVLayer) -> None:
        """Rotate q [T, H * d] and k [T, G * d] in place for positions start..start+T and write k and v into `cache`
        there.
        """
        ...

    def attention(
        self,
        q: Array,
        cache: KVLayer,
        start: int,
        num_heads: int,
        scale: float,
        window: int = 0,
        sinks: Array | None = None,
    ) -> Array:
        """Causal attention of rotated q [T, H * d] at positions start..

        over cache positions 0..start+t (or the last `window`): float32 [T, H * dv]. `sinks` float32 [H] adds e^sink to
        each head's sum of weights. A ring must have T + window - 1 positions.
        """
        ...

    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        """x * sigmoid(gate) in place for x [T, N] and gate [T, N], or [T, 1] for whole rows; returns x."""
        ...

    def gated_norm(self, x: Array, gate: Array, weight: Array, eps: float) -> Array:
        """RMS norm in place over consecutive runs of len(weight) in each row of x [T, n * len(weight)], then times
        silu(gate) of the same shape; returns x.
        """
        ...

    def route(
        self, router_logits: Array, spec: RouterSpec, selection_bias: Array | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(topk_ids int32 [T, K], topk_weights float32 [T, K]) **on the host**, see RouterSpec."""
        ...

    def expert_gate_up(
        self, a: Activations, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: Array
    ) -> None:
        """h[pair] = unit(gate_e x, up_e x), silu(gate_e x) * up_e x as a rule, for every pair row of the groups listed
        in `which` (int32); biases, where the table has them, are added to the products. h float32 [P, F] is written
        there only.
        """
        ...

    def expert_down(self, h: Array, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: Array) -> None:
        """d[pair] = down_e h[pair], plus its bias, for the listed groups; d float32 [P, D] is written there only."""
        ...

    def expert_combine(self, d: Array, groups: ExpertGroups, topk_weights: np.ndarray) -> Array:
        """Sum over ranks k = 0.. in that order of topk_weights[t, k] * d[pair_of[t, k]]: float32 [T, D].

        The order never depends on arrival.
        """
        ...

    def experts(self, a: Activations, table: ExpertTable, topk_ids: np.ndarray, topk_weights: np.ndarray) -> Array:
        """All chosen experts of a layer that holds every one of them, float32 [T, D]: the same bits as the three steps
        above. `kernels.whole_layer.experts_by_steps` serves where a backend has nothing quicker."""
        ...

    def pair_buffers(self, n_pairs: int, intermediate_size: int, hidden_size: int) -> tuple[Array, Array]:
        """Workspace (h, d) for the expert ops of one layer call."""
        ...
