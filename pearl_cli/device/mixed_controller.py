"""`MixedController`: experts that the GPU lacks may be computed on the CPU, while they are copied for the next time.

What the CPU computes is rounded as the CPU rounds. Which experts those are follows from what has been copied by then,
so under this flag ids may differ from run to run where two logits are all but equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.backend import Backend
from models.expert_provider import RouterWeights
from pearl_cli.device.miss_rule import MissRule
from pearl_cli.device.streamed_experts import StreamedExperts
from pearl_cli.predict.base import NextUse
from pearl_cli.residency.arena import Slots
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.gate_call import GateCall
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.load import Load
from pearl_cli.residency.load_queue import LoadQueue
from pearl_cli.routing.base import RoutingPolicy


class MixedController(ResidencyController):
    """`experts` is the backend too; its `on_host` says which experts of the call at work the CPU computes."""

    _demands_first = False  # what stays is copied behind what the CPU computes

    def __init__(
        self,
        layers: Sequence[LayerState | None],
        routers: Sequence[RouterWeights | None],
        backend: Backend,
        arena: Slots,
        queue: LoadQueue,
        routing: RoutingPolicy,
        next_use: NextUse | None,
        experts: StreamedExperts,
        rule: MissRule,
    ) -> None:
        super().__init__(layers, routers, backend, arena, queue, routing, None, next_use)
        self._experts = experts
        self._rule = rule
        self._waiting: list[int] = []  # groups for the CPU, not computed yet

    def _demand_missing(
        self, state: LayerState, call: GateCall, missing: list[int], only_free: bool = False
    ) -> None:
        absent = [expert for expert in missing if expert not in state.loads]
        sizes = np.diff(call.groups.offsets)
        chosen = [absent[i] for i in self._rule.on_cpu([int(sizes[call.group_of[expert]]) for expert in absent])]
        self._experts.on_host = frozenset(chosen)
        self._waiting = [call.group_of[expert] for expert in chosen]
        copied = [expert for expert in missing if expert not in self._experts.on_host]
        super()._demand_missing(state, call, copied, only_free)
        self._copy_behind(state, [expert for expert in chosen if call.keeps[expert]])

    def _copy_behind(self, state: LayerState, expert_ids: list[int]) -> None:
        loads: list[Load] = []
        for expert in expert_ids:
            slot = self._slots.take_slot(state)
            if slot < 0:
                break
            loads.append(state.new_load(expert, slot, self.arena, demanded=False))
        if loads:
            self.queue.prefetch(loads)

    def _next_work(self, call: GateCall, state: LayerState) -> tuple[np.ndarray, np.ndarray]:
        if self._waiting and not call.ready:
            which = np.array(self._waiting, np.int32)
            self._waiting = []
            return which, which
        return super()._next_work(call, state)

    def _leave(self, call: GateCall, state: LayerState, computed: np.ndarray) -> None:
        if int(call.groups.expert_ids[computed[0]]) not in self._experts.on_host:
            super()._leave(call, state, computed)
            return
        self._experts.on_host = frozenset()
        call.open_groups -= computed.size
        if call.todo:
            self._queue_todo(call, state)
