"""`ReferenceBackend`: the op set by the plain functions of this folder, float64 inside and float32 at every border.

It defines the answers. It dequantises a whole weight at each use, so it is for tiny models and tests, not for running.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.backend import SILU, Activations, Array, ExpertGroups, ExpertTable, GatedUnit, KVLayer, RopeTable, Weight
from kernels.delta_rule import DeltaRule
from kernels.quant_types import QuantType, row_bytes
from kernels.reference.attention import attention_ref, kv_write_ref, new_kv_ref
from kernels.reference.conv import causal_conv_ref
from kernels.reference.delta_rule import delta_rule_ref
from kernels.reference.embed import embed_ref
from kernels.reference.experts import expert_combine_ref, expert_down_ref, expert_gate_up_ref
from kernels.reference.gates import gated_norm_ref, sigmoid_gate_ref
from kernels.reference.linear import gated_mlp_ref, linear_ref
from kernels.reference.norm import head_norm_ref, layer_norm_ref, norm_ref
from kernels.reference.rope import rope_ref
from kernels.reference.router import route_ref
from kernels.reference.selective_scan import selective_scan_ref
from kernels.router_spec import RouterSpec
from kernels.selective_scan import SelectiveScan
from kernels.whole_layer import experts_by_steps


class ReferenceBackend:
    """`kernels.backend.Backend` on numpy arrays; every output is a fresh array."""

    name = "reference"

    def from_host(self, array: np.ndarray) -> Array:
        return array

    def to_host(self, array: Array) -> np.ndarray:
        return np.asarray(array)

    def weight(self, data: np.ndarray, quant_type: QuantType, n_rows: int, n_cols: int) -> Weight:
        size = n_rows * row_bytes(quant_type, n_cols)
        if data.dtype != np.uint8 or data.size != size:
            raise ValueError(f"{quant_type.name} [{n_rows}, {n_cols}] takes {size} uint8, got {data.size} {data.dtype}")
        return Weight(data.reshape(n_rows, -1), quant_type, n_rows, n_cols)

    def kv_layer(
        self, num_kv_heads: int, capacity: int, head_dim: int, value_dim: int, k_dtype: str, v_dtype: str
    ) -> KVLayer:
        k = new_kv_ref(num_kv_heads, capacity, head_dim, k_dtype)
        return KVLayer(k, new_kv_ref(num_kv_heads, capacity, value_dim, v_dtype), k_dtype, v_dtype)

    def embed(self, table: Weight, token_ids: np.ndarray) -> Array:
        return embed_ref(table, token_ids)

    def norm(self, x: Array, weight: Array, eps: float, readers: Sequence[Weight] = ()) -> Activations:
        return Activations(norm_ref(x, weight, eps).astype(np.float32))

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Activations:
        return Activations(layer_norm_ref(x, weight, bias, eps).astype(np.float32))

    def head_norm(self, x: Array, weight: Array, eps: float) -> Array:
        x[:] = head_norm_ref(x, weight, eps)
        return x

    def new_rows(self, n_rows: int, width: int) -> Array:
        return np.empty((n_rows, width), np.float32)

    def concatenate(self, rows: Sequence[Array]) -> Array:
        return np.concatenate(rows)

    def activations(self, x: Array) -> Activations:
        return Activations(x)

    def linear(self, a: Activations, *weights: Weight, bias: Array | None = None) -> Array:
        return linear_ref(a.x, *weights, bias=bias).astype(np.float32)

    def gated_mlp(self, a: Activations, gate: Weight, up: Weight, down: Weight, unit: GatedUnit = SILU) -> Array:
        return gated_mlp_ref(a.x, gate, up, down, unit).astype(np.float32)

    def rope_write(self, q: Array, k: Array, v: Array, rope: RopeTable, start: int, cache: KVLayer) -> None:
        head_dim = k.shape[1] // cache.k.shape[0]
        q[:] = rope_ref(q, rope, start, head_dim)
        k[:] = rope_ref(k, rope, start, head_dim)
        kv_write_ref(cache.k, k, start, cache.ring)
        kv_write_ref(cache.v, v, start, cache.ring)

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
        return attention_ref(q, cache, start, num_heads, scale, window, sinks).astype(np.float32)

    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        x[:] = sigmoid_gate_ref(x, gate)
        return x

    def gated_norm(self, x: Array, gate: Array, weight: Array, eps: float) -> Array:
        x[:] = gated_norm_ref(x, gate, weight, eps)
        return x

    def causal_conv(self, x: Array, kernel: Array, state: Array, silu: bool, bias: Array | None = None) -> Array:
        return causal_conv_ref(x, kernel, state, silu, bias).astype(np.float32)

    def delta_rule(self, qkv: Array, beta: Array, alpha: Array, rule: DeltaRule, state: Array) -> Array:
        return delta_rule_ref(qkv, beta, alpha, rule, state).astype(np.float32)

    def selective_scan(self, xbc: Array, dt: Array, scan: SelectiveScan, state: Array) -> Array:
        return selective_scan_ref(xbc, dt, scan, state).astype(np.float32)

    def route(
        self, router_logits: Array, spec: RouterSpec, selection_bias: Array | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        topk_ids, topk_weights = route_ref(router_logits, spec, selection_bias)
        return topk_ids, topk_weights.astype(np.float32)

    def expert_gate_up(
        self, a: Activations, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: Array
    ) -> None:
        expert_gate_up_ref(a.x, table, groups, which, h)

    def expert_down(self, h: Array, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: Array) -> None:
        expert_down_ref(h, table, groups, which, d)

    def expert_combine(self, d: Array, groups: ExpertGroups, topk_weights: np.ndarray) -> Array:
        return expert_combine_ref(d, groups, topk_weights).astype(np.float32)

    def experts(self, a: Activations, table: ExpertTable, topk_ids: np.ndarray, topk_weights: np.ndarray) -> Array:
        return experts_by_steps(self, a, table, topk_ids, topk_weights)

    def pair_buffers(self, n_pairs: int, intermediate_size: int, hidden_size: int) -> tuple[Array, Array]:
        return np.empty((n_pairs, intermediate_size), np.float32), np.empty((n_pairs, hidden_size), np.float32)
