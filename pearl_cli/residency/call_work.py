"""`CallWork`: in what order the experts of one layer call are demanded, waited for and computed.

What a call needs, and what the budget keeps, is decided before, by `ResidencyController`; it is this file's only user.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pearl_cli.residency.arena import Slots
from pearl_cli.residency.gate_call import GateCall
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.load import Load
from pearl_cli.residency.load_queue import LoadQueue
from pearl_cli.residency.slot_keeper import SlotKeeper

_PREFILL_BATCH = 4  # resident groups computed between two looks at the arrivals, while transient experts wait for slots


class CallCancelled(Exception):
    """The caller asked, between two layers, to stop the running forward call. No fault; only that call is lost."""


class CallWork:
    """_demands_first: whether experts may be demanded before it is known which of them stay. reorder: experts already
    there are computed while others arrive. `cancelled`, where set, is asked while waiting; when it says True,
    CallCancelled is raised.
    """

    _demands_first = True

    def __init__(self, slots: SlotKeeper, arena: Slots, queue: LoadQueue, reorder: bool) -> None:
        self.arena = arena
        self.queue = queue
        self.demand = slots.demand
        self.cancelled: Callable[[], bool] | None = None
        self._slots = slots
        self._reorder = reorder
        self._meanwhile: Callable[[], None] | None = None  # to be done once, when those already here are computed

    def _demand_missing(
        self, state: LayerState, call: GateCall, missing: list[int], only_free: bool = False
    ) -> None:
        """Promote what is on its way, queue the rest: first experts that leave again, so that they pass through while
        there is room. only_free: as far as slots are free; nothing gives one up.
        """
        call.demanded = True
        on_the_way = [state.loads[expert] for expert in missing if expert in state.loads]
        if on_the_way:
            self._promote(call, on_the_way)
        fresh = [expert for expert in missing if expert not in state.loads]
        for expert in fresh:
            self.demand.miss_bytes += state.expert_bytes[expert]
        call.todo.extend(expert for expert in fresh if not call.keeps[expert])
        call.todo.extend(expert for expert in fresh if call.keeps[expert])
        self._queue_todo(call, state, only_free)

    def _promote(self, call: GateCall, loads: list[Load]) -> None:
        self.queue.promote(loads)
        self.demand.promoted += len(loads)
        for load in loads:
            self._slots.count_forecast(load.early_bytes, useful=True)
            self.demand.miss_bytes += sum(place.n_bytes for place in load.places) - load.early_bytes
            call.note_landed(load)

    def _queue_todo(self, call: GateCall, state: LayerState, only_free: bool = False) -> None:
        loads = []
        while call.todo:
            slot = self.arena.take(state.size_class) if only_free else self._slots.take_slot(state)
            if slot < 0:
                break
            loads.append(state.new_load(call.todo.popleft(), slot, self.arena, demanded=True))
        if loads:
            self.queue.demand(loads)

    def _next_work(self, call: GateCall, state: LayerState) -> tuple[np.ndarray, np.ndarray]:
        """Groups whose gate and up, and groups whose down, can be computed now; waits for an arrival when there are
        none.
        """
        while True:
            hold = not self._reorder and not call.todo and any(expert in state.loads for expert in call.group_of)
            if call.ready and not hold:
                which = call.take_ready(_PREFILL_BATCH if call.todo else len(call.ready))
                return which, which
            if self._meanwhile is not None:
                work, self._meanwhile = self._meanwhile, None
                work()
                self._slots.settle(self.queue.take(block=False))
                continue
            if (call.gate_up_ready or call.down_ready) and not hold:
                gate_up, down = np.array(call.gate_up_ready, np.int32), np.array(call.down_ready, np.int32)
                call.gate_up_ready, call.down_ready = [], []
                return gate_up, down
            self._queue_todo(call, state)
            call.waited = True
            arrivals = self.queue.take(block=True, cancelled=self.cancelled)
            if not arrivals and self.cancelled is not None and self.cancelled():
                raise CallCancelled
            if not arrivals:
                waiting = list(call.todo)
                raise RuntimeError(f"layer {call.layer}: experts {waiting} wait for slots and nothing is on its way")
            self._slots.settle(arrivals)

    def _leave(self, call: GateCall, state: LayerState, computed: np.ndarray) -> None:
        """After the last use in this call: experts that the budget does not keep make room for those still to come."""
        call.open_groups -= computed.size
        if call.all_stay:
            return
        for expert in call.groups.expert_ids[computed].tolist():
            if not call.keeps[expert]:
                state.vacate(expert, self.arena)
        if call.todo:
            self._queue_todo(call, state)
