"""`StreamedExperts`: the expert ops of a GPU backend, each behind the copies that it reads.

The computing stream waits for marks of the copying stream, and leaves marks of its own so that copies may wait for it.
The host waits for neither. Kernels find experts through the slot table on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from kernels.backend import Activations, Array, Backend, ExpertGroups, ExpertTable
from kernels.gpu.device_calls import Region
from pearl_cli.device.device_side import DeviceSide
from pearl_cli.device.host_experts import HostExperts
from pearl_cli.device.recorded_experts import RecordedExperts, RoutedBackend
from pearl_cli.residency.layer_state import LayerState


class StreamedExperts:
    """What `ResidencyController` asks of a backend; tables handed in are those of the layers' states. on_host: experts
    of the call at work that `host_experts` computes instead; listed by themselves.
    """

    def __init__(
        self,
        backend: Backend,
        side: DeviceSide,
        layers: Sequence[LayerState | None],
        host_experts: HostExperts | None = None,
    ) -> None:
        self.on_host: frozenset[int] = frozenset()
        self._backend = backend
        self._calls = side.calls
        self._copies = side.copies
        self._compute = side.compute
        self._slot_table = side.table
        self._marks = side.marks
        self._arena = side.arena
        self._host_experts = host_experts
        self._host_input: Array = None
        self._recorded = RecordedExperts(side.calls, backend) if isinstance(backend, RoutedBackend) else None
        states = [state for state in layers if state is not None]
        self._state_of = {id(state.table): state for state in states}
        self._table_of = {id(state.table): side.table.view(state.layer, state.table) for state in states}

    def to_host(self, array: Array) -> np.ndarray:
        return self._backend.to_host(array)

    def pair_buffers(self, n_pairs: int, intermediate_size: int, hidden_size: int) -> tuple[Array, Array]:
        return self._backend.pair_buffers(n_pairs, intermediate_size, hidden_size)

    def expert_gate_up(
        self, a: Activations, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: Array
    ) -> None:
        state, on_device = self._state_of[id(table)], self._table_of[id(table)]
        expert_ids = groups.expert_ids[which]
        if self.on_host and int(expert_ids[0]) in self.on_host:
            self._host_input = a.x
            return
        self._copies.wait(self._calls.compute, int(self._marks.copied[state.slot_of[expert_ids]].max()))
        reads = self._regions(state, expert_ids, (0, 1)) if self._calls.checked else ()

        def work() -> None:
            self._backend.expert_gate_up(a, on_device, groups, which, h)

        self._calls.launch(work, reads, name="expert_gate_up")

    def expert_down(self, h: Array, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: Array) -> None:
        """Also the last use of the listed experts in this call, so the mark goes here."""
        state, on_device = self._state_of[id(table)], self._table_of[id(table)]
        expert_ids = groups.expert_ids[which]
        if self.on_host and int(expert_ids[0]) in self.on_host:
            self._compute_on_host(state, groups, which, d)
            return
        reads = self._regions(state, expert_ids, (2,)) if self._calls.checked else ()

        def work() -> None:
            self._backend.expert_down(h, on_device, groups, which, d)

        self._calls.launch(work, reads, name="expert_down")
        self._marks.note_use(state.layer, expert_ids, state.slot_of[expert_ids], self._compute.mark())

    def expert_combine(self, d: Array, groups: ExpertGroups, topk_weights: np.ndarray) -> Array:
        return self._calls.run(
            lambda: self._backend.expert_combine(d, groups, topk_weights), name="expert_combine"
        )

    def experts(self, a: Activations, table: ExpertTable, topk_ids: np.ndarray, topk_weights: np.ndarray) -> Array:
        """All chosen experts of a layer that holds every one of them."""
        state, on_device = self._state_of[id(table)], self._table_of[id(table)]
        expert_ids = np.unique(topk_ids)
        slots = state.slot_of[expert_ids]
        self._copies.wait(self._calls.compute, int(self._marks.copied[slots].max()))
        reads = self._regions(state, expert_ids, (0, 1, 2)) if self._calls.checked else ()
        recorded = self._recorded
        if recorded is not None and (answer := recorded.answer(topk_ids, topk_weights)) is not None:
            result = recorded(state.layer, a, on_device, answer, reads)
        else:
            result = self._calls.run(
                lambda: self._backend.experts(a, on_device, topk_ids, topk_weights), reads, name="experts"
            )
        self._marks.note_use(state.layer, expert_ids, slots, self._compute.mark())
        return result

    def _compute_on_host(self, state: LayerState, groups: ExpertGroups, which: np.ndarray, d: Array) -> None:
        """Rows of the listed groups into d, while the device works on what it was given before."""
        if self._host_experts is None:
            raise ValueError("nobody computes experts on the host")
        rows = self._host_experts.rows(state, self._backend.to_host(self._host_input), groups, which)

        def upload(begin: int, end: int) -> None:
            d[begin:end] = self._backend.from_host(rows[begin:end].copy())

        for group in which.tolist():
            begin, end = int(groups.offsets[group]), int(groups.offsets[group + 1])
            self._calls.launch(partial(upload, begin, end), name="upload")

    def _regions(self, state: LayerState, expert_ids: np.ndarray, linears: Sequence[int]) -> list[Region]:
        """What a kernel reads: entries of the slot table, and the matrices that they point to."""
        regions = []
        for expert in expert_ids.tolist():
            slot, key = int(state.slot_of[expert]), (state.layer, expert)
            regions.append(self._slot_table.entry(*key, slot))
            for i in linears:
                regions.append(self._arena.region(slot, state.places[expert][i], (*key, i)))
        return regions
