"""`ResidentExperts`: every expert in memory, routing exactly as the model was trained. It defines the answer.

A run that streams experts, or keeps all of them under a controller, must give the same bits as this one.
"""

from __future__ import annotations

import numpy as np

from kernels.backend import Activations, Array, Backend, ExpertTable
from kernels.grouping import group_by_expert
from models.expert_provider import Routing
from models.expert_store import LINEARS, ExpertStore
from models.model import Model
from models.weights import aligned, allocate


class ResidentExperts:
    """`models.expert_provider.ExpertProvider` without residency: `tables[l]` never changes after the constructor."""

    def __init__(self, model: Model, store: ExpertStore, backend: Backend) -> None:
        """Reads all experts of `store` into one arena of about `store.total_bytes`. Raises GGUFError when the file
        is short.
        """
        self._backend = backend
        self._routers = model.routers
        config = model.config
        chunks = [
            (layer, expert, linear, store.chunk(layer, expert, linear))
            for layer in store.moe_layers()
            for expert in range(store.num_experts)
            for linear in range(len(LINEARS))
        ]
        self._arena = allocate(backend, sum(aligned(chunk.n_bytes) for *_, chunk in chunks))
        self.tables = {
            layer: _empty_table(store.num_experts, config.hidden_size, config.moe_intermediate_size)
            for layer in store.moe_layers()
        }
        for layer, table in self.tables.items():
            router = self._routers[layer]
            if router is not None:
                router.complete(table)
        start = 0
        for layer, expert, linear, chunk in chunks:
            out = self._arena[start : start + chunk.n_bytes]
            store.read_into(layer, expert, linear, out)
            name = LINEARS[linear]
            getattr(self.tables[layer], name)[expert] = out.ctypes.data
            getattr(self.tables[layer], f"{name}_types")[expert] = int(chunk.quant_type)
            start += aligned(chunk.n_bytes)

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        """Nothing to prepare."""

    def select(self, layer: int, residual: Array, a: Activations, router_logits: Array) -> Routing:
        """Exact routing, see `RouterSpec`."""
        router = self._routers[layer]
        if router is None:
            raise ValueError(f"layer {layer} has no experts")
        return Routing(*self._backend.route(router_logits, router.spec, router.exp_probs_b))

    def compute(self, layer: int, a: Activations, routing: Routing) -> Array:
        """The routed experts' weighted sum, float32 [T, D]."""
        backend, table = self._backend, self.tables[layer]
        groups = group_by_expert(routing.topk_ids)
        which = np.arange(groups.expert_ids.shape[0], dtype=np.int32)
        h, d = backend.pair_buffers(routing.topk_ids.size, table.intermediate_size, table.hidden_size)
        backend.expert_gate_up(a, table, groups, which, h)
        backend.expert_down(h, table, groups, which, d)
        return backend.expert_combine(d, groups, routing.topk_weights)

    def end(self) -> None:
        """Nothing to release."""


def _empty_table(num_experts: int, hidden_size: int, intermediate_size: int) -> ExpertTable:
    def column(dtype: type[np.generic]) -> np.ndarray:
        return np.zeros(num_experts, dtype)

    return ExpertTable(
        gate=column(np.int64),
        up=column(np.int64),
        down=column(np.int64),
        gate_types=column(np.uint8),
        up_types=column(np.uint8),
        down_types=column(np.uint8),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
    )
