"""Experts computed on the CPU where they lie in host memory, for a GPU that lacks them."""

from __future__ import annotations

import dataclasses

import numpy as np

from kernels.backend import Activations, Backend, ExpertGroups, ExpertTable
from pearl_cli.device.host_tier import HostTier
from pearl_cli.residency.layer_state import LayerState


class HostExperts:
    """`backend` computes on host arrays; every expert must be in `host`."""

    def __init__(self, backend: Backend, host: HostTier) -> None:
        self._backend = backend
        self._host = host
        self._tables: dict[int, ExpertTable] = {}

    def rows(self, state: LayerState, x: np.ndarray, groups: ExpertGroups, which: np.ndarray) -> np.ndarray:
        """down(silu(gate x) * up x) for the pairs of the listed groups: float32 [P, D], other rows undefined."""
        table = self._table(state)
        for expert in groups.expert_ids[which].tolist():
            for linear, addresses in enumerate((table.gate, table.up, table.down)):
                addresses[expert] = self._host.address((state.layer, expert), linear)
        h, d = self._backend.pair_buffers(groups.token_ids.size, table.intermediate_size, table.hidden_size)
        self._backend.expert_gate_up(Activations(x), table, groups, which, h)
        self._backend.expert_down(h, table, groups, which, d)
        rows: np.ndarray = d
        return rows

    def _table(self, state: LayerState) -> ExpertTable:
        found = self._tables.get(state.layer)
        if found is None:
            empty = [np.zeros(state.num_experts, np.int64) for _ in range(3)]
            found = dataclasses.replace(state.table, gate=empty[0], up=empty[1], down=empty[2])
            self._tables[state.layer] = found
        return found
