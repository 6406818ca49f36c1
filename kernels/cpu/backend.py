"""`CpuBackend`: the op set on numpy arrays, by compiled kernels that read GGUF blocks in place.

Ops return fresh arrays; only `pair_buffers` hands out workspace. One backend serves one thread of kernel calls at a
time; other threads run meanwhile, since no kernel holds the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from kernels.backend import SILU, Activations, Array, ExpertGroups, ExpertTable, GatedUnit, KVLayer, RopeTable, Weight
from kernels.cpu import attention as attention_ops
from kernels.cpu import conv as conv_ops
from kernels.cpu import delta_rule as delta_ops
from kernels.cpu import embed as embed_ops
from kernels.cpu import experts as expert_ops
from kernels.cpu import gated_units, gates, kv_quant, memory, norm, parallel, router
from kernels.cpu import linear as linear_ops
from kernels.cpu import rope as rope_ops
from kernels.cpu import selective_scan as scan_ops
from kernels.cpu.features import target
from kernels.cpu.kernel_clock import KernelClock, Observer
from kernels.cpu.linear import LinearPlans
from kernels.cpu.matmul import TileTable
from kernels.cpu.norm_forms import NormPlans, norm_with_forms
from kernels.cpu.recycled import copy_of, new_rows
from kernels.cpu.type_table import TypeTable
from kernels.cpu.warmup import Progress, warm_up
from kernels.delta_rule import DeltaRule
from kernels.quant_types import QuantType, row_bytes
from kernels.router_spec import RouterSpec
from kernels.selective_scan import SelectiveScan
from kernels.whole_layer import experts_by_steps

_EMPTY = np.empty((0, 0), np.float32)


class CpuBackend:
    """`kernels.backend.Backend` for the CPU. What ops give back for one token lies in recycled memory, so that decoding
    allocates no arrays (kernels.cpu.recycled). `isa` overrides the instruction set (features.ISAS) for this backend's
    dot kernels.

    Raises ValueError for an instruction set that this machine cannot run, and for a thread count outside 1..cores.
    """

    name = "cpu"

    def __init__(self, threads: int | None = None, isa: str | None = None) -> None:
        if threads is not None:
            parallel.set_threads(threads)
        self.types = TypeTable(target(isa))
        self._tiles = TileTable(self.types.target)
        self._plans = LinearPlans(self.types, self._tiles)
        self._norm_plans = NormPlans(self.types)
        self._experts = expert_ops.Experts(self.types, self._tiles)
        self._clock = KernelClock()
        self._pairs: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def warmup(
        self, quant_types: Collection[QuantType], progress: Progress | None = None, recurrent: Collection[str] = ()
    ) -> bool:
        """Compile what a model with weights of `quant_types` needs, and the ops of `recurrent` layers by name, or
        load it from the cache; returns whether numba had to compile. `progress(what, done, total)` is called before
        each step."""
        return warm_up(self, quant_types, progress, recurrent)

    def require_types(self, quant_types: Collection[QuantType]) -> None:
        """Compile the vector-IR functions of these types, for one token and for many."""
        self.types.require(quant_types)
        self._tiles.require(quant_types)

    def forget(self, table: ExpertTable) -> None:
        """Drop what is kept for a slot table that will not be used again."""
        self._experts.forget(table)

    def time_kernels(self, on: bool, observer: Observer | None = None) -> None:
        """Start counting `seconds_in_kernels` from 0, or stop. Costs about 0.2 microseconds a kernel call while on.

        `observer` is told of each call: (kernel, begin, end).
        """
        self._clock.observer = observer
        if on:
            self._clock.start()
        else:
            self._clock.stop()

    @property
    def seconds_in_kernels(self) -> float:
        """Wall time inside compiled kernels while time_kernels was on: the rest of a token's time is Python's."""
        return self._clock.seconds

    def from_host(self, array: np.ndarray) -> Array:
        return array

    def to_host(self, array: Array) -> np.ndarray:
        return np.asarray(array)

    def allocate(self, n_bytes: int) -> np.ndarray:
        """Zeroed uint8 [n_bytes] for weights, page-aligned or better, see `kernels.cpu.memory`."""
        return memory.allocate(n_bytes)

    def weight(self, data: np.ndarray, quant_type: QuantType, n_rows: int, n_cols: int) -> Weight:
        size = n_rows * row_bytes(quant_type, n_cols)
        if data.dtype != np.uint8 or data.size != size or not data.flags.c_contiguous:
            raise ValueError(
                f"{quant_type.name} [{n_rows}, {n_cols}] takes {size} contiguous uint8, got {data.size} {data.dtype}"
            )
        return Weight(data.reshape(n_rows, -1), quant_type, n_rows, n_cols)

    def kv_layer(
        self, num_kv_heads: int, capacity: int, head_dim: int, value_dim: int, k_dtype: str, v_dtype: str
    ) -> KVLayer:
        return kv_quant.new_kv_layer(num_kv_heads, capacity, head_dim, value_dim, k_dtype, v_dtype)

    def embed(self, table: Weight, token_ids: np.ndarray) -> Array:
        return embed_ops.embed(table, token_ids)

    def norm(self, x: Array, weight: Array, eps: float, readers: Sequence[Weight] = ()) -> Activations:
        return norm_with_forms(x, weight, eps, readers, self._norm_plans)

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Activations:
        centred = copy_of(x)
        centred -= x.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        rows = self.norm(centred, weight, eps).x
        rows += bias
        return Activations(rows)

    def head_norm(self, x: Array, weight: Array, eps: float) -> Array:
        return norm.head_norm(x, weight, eps)

    def new_rows(self, n_rows: int, width: int) -> Array:
        return new_rows(n_rows, width)

    def concatenate(self, rows: Sequence[Array]) -> Array:
        return np.concatenate(rows)

    def activations(self, x: Array) -> Activations:
        return Activations(x)

    def linear(self, a: Activations, *weights: Weight, bias: Array | None = None) -> Array:
        out = linear_ops.linear(a, weights, self._plans)
        if bias is not None:
            out += bias
        return out

    def gated_mlp(self, a: Activations, gate: Weight, up: Weight, down: Weight, unit: GatedUnit = SILU) -> Array:
        both = linear_ops.linear(a, (gate, up), self._plans)
        h = gated_units.join_halves(both, gate.n_rows, unit, self.types.target)
        return linear_ops.linear(Activations(h), (down,), self._plans)

    def rope_write(self, q: Array, k: Array, v: Array, rope: RopeTable, start: int, cache: KVLayer) -> None:
        rope_ops.rope_write(q, k, v, rope, start, cache)

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
        return attention_ops.attention(q, cache, start, num_heads, scale, window, sinks)

    def sigmoid_gate(self, x: Array, gate: Array) -> Array:
        return gates.sigmoid_gate(x, gate)

    def gated_norm(self, x: Array, gate: Array, weight: Array, eps: float) -> Array:
        return gates.gated_norm(x, gate, weight, eps)

    def causal_conv(self, x: Array, kernel: Array, state: Array, silu: bool, bias: Array | None = None) -> Array:
        return conv_ops.causal_conv(x, kernel, state, silu, bias)

    def delta_rule(self, qkv: Array, beta: Array, alpha: Array, rule: DeltaRule, state: Array) -> Array:
        return delta_ops.delta_rule(qkv, beta, alpha, rule, state)

    def selective_scan(self, xbc: Array, dt: Array, scan: SelectiveScan, state: Array) -> Array:
        return scan_ops.selective_scan(xbc, dt, scan, state)

    def route(
        self, router_logits: Array, spec: RouterSpec, selection_bias: Array | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return router.route(router_logits, spec, selection_bias)

    def expert_gate_up(
        self, a: Activations, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: Array
    ) -> None:
        self._experts.gate_up(a, table, groups, which, h)

    def expert_down(self, h: Array, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: Array) -> None:
        self._experts.down(h, table, groups, which, d)

    def expert_combine(self, d: Array, groups: ExpertGroups, topk_weights: np.ndarray) -> Array:
        return expert_ops.expert_combine(d, groups, topk_weights)

    def experts(self, a: Activations, table: ExpertTable, topk_ids: np.ndarray, topk_weights: np.ndarray) -> Array:
        out = self._experts.token(a, table, topk_ids, topk_weights) if topk_ids.shape[0] == 1 else None
        return experts_by_steps(self, a, table, topk_ids, topk_weights) if out is None else out

    def pair_buffers(self, n_pairs: int, intermediate_size: int, hidden_size: int) -> tuple[Array, Array]:
        """Workspace (h [n_pairs, F], d [n_pairs, D]) that the next call with these widths hands out again; kept at
        its largest size.
        """
        key = (intermediate_size, hidden_size)
        h, d = self._pairs.get(key, (_EMPTY, _EMPTY))
        if h.shape[0] < n_pairs:
            h, d = (np.empty((n_pairs, width), np.float32) for width in key)
            self._pairs[key] = (h, d)
        return h[:n_pairs], d[:n_pairs]
