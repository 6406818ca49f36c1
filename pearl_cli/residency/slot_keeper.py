"""`SlotKeeper`: who holds which slot, what landed where, and what becomes of forecasts.

Physical truth and its repair after errors; which experts a call needs, and when they compute, is the controller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from models.errors import ReadFailure
from pearl_cli.residency.arena import Slots
from pearl_cli.residency.gate_call import GateCall
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.load import Arrival, Load
from pearl_cli.residency.load_queue import LoadQueue
from pearl_cli.residency.prefetch import Prefetcher
from pearl_cli.residency.stats import DemandStats


class SlotKeeper:
    """layers[l] is None for a layer without experts. `call` is the layer call that demanded loads report to."""

    def __init__(
        self,
        layers: Sequence[LayerState | None],
        arena: Slots,
        queue: LoadQueue,
        prefetcher: Prefetcher | None,
    ) -> None:
        self.layers = layers
        self.arena = arena
        self.queue = queue
        self.demand = DemandStats(len(layers))
        self.call: GateCall | None = None
        self.max_ahead: int | None = None  # copies of inserted experts on their way at once; None: no limit
        self._prefetcher = prefetcher
        self._ahead: set[tuple[int, int]] = set()  # (layer, expert) inserted, landed and not used yet

    def state(self, layer: int) -> LayerState:
        """Raises ValueError for a layer without experts."""
        state = self.layers[layer]
        if state is None:
            raise ValueError(f"layer {layer} has no experts")
        return state

    def load_experts(
        self, pairs: Iterable[tuple[int, int]], progress: Callable[[int], None] | None = None
    ) -> None:
        """Read (layer, expert) pairs into free room of their layers' budgets, in the given order; pairs without room
        are passed over.

        progress(n_bytes) is told of every chunk landed. Raises ReadFailure.
        """
        pending: set[Load] = set()
        for layer, expert in pairs:
            state = self.state(layer)
            full = np.count_nonzero(state.cache.resident) >= state.cache.capacity
            if full or state.cache.logical or state.cache.resident[expert]:
                continue
            slot = self.arena.take(state.size_class)
            if slot < 0:
                continue
            state.cache.admit(expert)
            load = state.new_load(expert, slot, self.arena, demanded=True)
            pending.add(load)
            self.queue.demand([load])
        while pending:
            for arrival in self.queue.take(block=True):
                self.settle([arrival])
                if progress is not None:
                    progress(sum(p.n_bytes for i, p in enumerate(arrival.load.places) if arrival.mask >> i & 1))
                if arrival.load.expert not in self.state(arrival.load.layer).loads:
                    pending.discard(arrival.load)

    @property
    def _no_guests(self) -> bool:
        return self._prefetcher is None or self._prefetcher.idle

    def nothing_leaves(self, state: LayerState) -> bool:
        """Whether the budget keeps every expert of the layer and no forecast is about: `drop_unwanted` finds nothing.
        """
        everything = state.cache.capacity == state.num_experts and not state.cache.logical
        return everything and not state.loads and self._no_guests and not self._ahead

    def drop_unwanted(self, state: LayerState, call: GateCall) -> None:
        """Free the slots of experts that the budget no longer keeps and this call does not use; drop forecasts that
        were wrong.
        """
        for expert in state.cache.strangers(state.slot_of, call.groups.expert_ids).tolist():
            self._forget_guest(state, expert, useful=False)
            state.vacate(expert, self.arena)
        unused = [load for expert, load in state.loads.items() if expert not in call.group_of]
        for load in unused:
            if not call.keeps[load.expert]:
                self._drop(state, load)
        if not self._no_guests or self._ahead:
            for expert in call.group_of:
                self._forget_guest(state, expert, useful=True)

    def copy_ahead(self, state: LayerState, expert_ids: np.ndarray, evicted: np.ndarray) -> None:
        """A cache was stocked ahead of its layer's gate: free the slots of `evicted`, which nothing that computes now
        reads, and queue copies of `expert_ids` behind all demands. One without a slot waits for its gate.
        """
        for expert in evicted.tolist():
            self._forget_guest(state, expert, useful=False)
            if state.slot_of[expert] >= 0:
                state.vacate(expert, self.arena)
            elif expert in state.loads:
                self._drop(state, state.loads[expert])
        loads: list[Load] = []
        for expert in expert_ids.tolist():
            if state.slot_of[expert] >= 0 or expert in state.loads or self._enough_ahead(len(loads)):
                continue
            slot = self.take_slot(state)
            if slot >= 0:
                loads.append(state.new_load(expert, slot, self.arena, demanded=False))
        if loads:
            self.queue.prefetch(loads)

    def _enough_ahead(self, more: int) -> bool:
        if self.max_ahead is None:
            return False
        waiting = sum(not load.demanded for state in self.layers if state is not None for load in state.loads.values())
        return waiting + more >= self.max_ahead

    def _forget_guest(self, state: LayerState, expert: int, useful: bool) -> None:
        """A landed forecast met its layer's gate, or gave up its slot."""
        if (state.layer, expert) in self._ahead:
            self._ahead.discard((state.layer, expert))
            self._count_early(state.expert_bytes[expert], useful)
        if self._prefetcher is not None and self._prefetcher.forget_guest(state.layer, expert):
            self.count_forecast(state.expert_bytes[expert], useful)

    def count_forecast(self, n_bytes: int, useful: bool) -> None:
        """n_bytes were read on a forecast that has now been decided."""
        self._count_early(n_bytes, useful)
        if self._prefetcher is not None and n_bytes:
            self._prefetcher.governor.settle(useful)

    def _count_early(self, n_bytes: int, useful: bool) -> None:
        if useful:
            self.demand.useful_prefetch_bytes += n_bytes
        else:
            self.demand.wasted_prefetch_bytes += n_bytes

    def _drop(self, state: LayerState, load: Load) -> bool:
        """Give up a forecast that is still on its way. True when its slot is free now; else it is freed by the last
        outstanding arrival.
        """
        del state.loads[load.expert]
        state.clear_addresses(load.expert)
        free = self.queue.drop(load)
        self.count_forecast(load.early_bytes, useful=False)  # no reader begins another chunk now
        if free:
            self._release_dropped(load)
        return free

    def _release_dropped(self, load: Load) -> None:
        if load.slot >= 0:
            self.arena.release(load.slot)
            load.slot = -1

    def take_slot(self, state: LayerState) -> int:
        """A slot for a demand: a free one, else one that a forecast holds and can give up at once."""
        slot = self.arena.take(state.size_class)
        if slot >= 0 or self._prefetcher is None:
            return slot
        self._reclaim_forecast(state)
        return self.arena.take(state.size_class)

    def _reclaim_forecast(self, state: LayerState) -> None:
        guest = self._prefetcher.oldest_guest(state.size_class) if self._prefetcher is not None else None
        if guest is not None:
            owner = self.state(guest[0])
            self._forget_guest(owner, guest[1], useful=False)
            owner.vacate(guest[1], self.arena)
            return
        for other in self.layers:
            if other is None or other.size_class != state.size_class:
                continue
            for load in [load for load in other.loads.values() if not load.demanded]:
                if self._drop(other, load):
                    return

    def settle(self, arrivals: list[Arrival]) -> None:
        """Take note of chunks that landed. Raises the error of a demanded read; a forecast that failed is only given
        up.
        """
        failure: Exception | None = None
        for arrival in arrivals:
            load = arrival.load
            state = self.state(load.layer)
            if arrival.error is not None and load.demanded:
                failure = failure or arrival.error
            elif arrival.error is not None and not load.dropped:
                self.demand.failed_prefetches += 1
                self._drop(state, load)
            if load.dropped:
                if load.outstanding == 0:
                    self._release_dropped(load)
            elif arrival.error is None:
                state.land(load, arrival.mask, self.arena)
                self._note_landed(state, load)
        if failure is not None:
            if isinstance(failure, ReadFailure):
                raise failure
            raise ReadFailure(f"reading an expert failed: {failure}") from failure

    def _note_landed(self, state: LayerState, load: Load) -> None:
        call = self.call
        if load.demanded:
            if call is not None and call.layer == load.layer and load.expert in call.group_of:
                call.note_landed(load)
        elif load.expert in state.loads:
            return
        elif state.cache.resident[load.expert]:
            self._ahead.add((load.layer, load.expert))
        elif self._prefetcher is not None:
            self._prefetcher.add_guest(load.layer, load.expert, state.size_class)

    def recover(self) -> None:
        """After an error or an interrupt anywhere in a call: wait for reads in flight, then trust only what has landed
        and is kept.
        """
        self.call = None
        for arrival in self.queue.abort():
            if arrival.error is None and not arrival.load.dropped:
                self.state(arrival.load.layer).land(arrival.load, arrival.mask, self.arena)
        if self._prefetcher is not None:
            self._prefetcher.forget_all()
        self._ahead.clear()
        used: set[int] = set()
        for state in self.layers:
            if state is not None:
                used |= state.recover()
        self.arena.reset_free(used)
