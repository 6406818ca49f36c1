"""`ResidencyController`: computes a model's experts out of fewer slots than there are experts, with the answer of the
all-resident run.

Per layer: demand what is missing at the gate, compute residents, then arrivals as they land, then sum in rank order.
What the budget keeps is decided by `LayerCache` from routing alone; where bytes are, and when they came, is decided
here and never leaks into the result: every expert is computed by the same kernel from the same bytes, and sums run in a
fixed order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kernels.backend import Activations, Array, Backend
from kernels.grouping import group_by_expert
from models.expert_provider import RouterWeights, Routing
from pearl_cli.predict.base import NextUse
from pearl_cli.residency.arena import Slots
from pearl_cli.residency.auto.auto_forecasts import AutoForecasts
from pearl_cli.residency.call_work import CallCancelled, CallWork
from pearl_cli.residency.gate_call import GateCall
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.load_queue import LoadQueue
from pearl_cli.residency.prefetch import Prefetcher
from pearl_cli.residency.slot_keeper import SlotKeeper
from pearl_cli.residency.stats import TokenStats
from pearl_cli.routing.base import Inserted, RoutingPolicy


class ResidencyController(CallWork):
    """An `ExpertProvider`. layers[l] is None for a layer without experts, `routers` likewise. `cancelled`, where set,
    is asked at each layer; when it says True, `select` raises CallCancelled. Not thread-safe; owns queue and arena.
    """

    def __init__(
        self,
        layers: Sequence[LayerState | None],
        routers: Sequence[RouterWeights | None],
        backend: Backend,
        arena: Slots,
        queue: LoadQueue,
        routing: RoutingPolicy,
        prefetcher: Prefetcher | None = None,
        next_use: NextUse | None = None,
        reorder: bool = True,
    ) -> None:
        super().__init__(SlotKeeper(layers, arena, queue, prefetcher), arena, queue, reorder)
        self.layers = layers
        self.last_call = TokenStats()
        self.auto: AutoForecasts | None = None
        self._routers = routers
        self._backend = backend
        self._routing = routing
        self._prefetcher = prefetcher
        self._next_use = next_use
        self._expected: dict[int, np.ndarray] = {}  # of the newest event of each layer
        self._phase = "decode"
        self._broken = False
        self._noted: Routing | None = None  # of the layer at work, where that is whole
        self._before = TokenStats()

    @property
    def totals(self) -> TokenStats:
        """Sums since the start."""
        return self.demand.snapshot(self.queue.stats)

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        if self._broken:
            self._recover()
        self._phase, self._meanwhile = phase, None
        self._before = self.totals
        self.demand.n_tokens += len(token_ids)
        for state in self.layers:
            if state is not None and not state.cache.logical:
                state.cache.history.cycle += 1
        if self.auto is not None:
            self.auto.begin(len(token_ids), phase)
            self._next_use = self.auto.next_use
        self._routing.begin(token_ids, start, phase)
        if self._prefetcher is not None:
            self._prefetcher.begin(token_ids, start, phase)
        if self._next_use is not None:
            self._next_use.begin(token_ids, start, phase)

    def select(self, layer: int, residual: Array, a: Activations, router_logits: Array) -> Routing:
        if self.cancelled is not None and self.cancelled():
            raise CallCancelled
        router = self._routers[layer]
        if router is None:
            raise ValueError(f"layer {layer} has no experts")
        routing = self._routing.select(router, residual, a, router_logits)
        state = self._slots.state(layer)
        if state.whole:
            self._note_use(state, routing)
        else:
            self._slots.call = self._gate(layer, a, routing)
        if self._routing.inserted is not None:
            self._follow(self._routing.inserted)
        if self._prefetcher is not None and self._phase == "decode" and self._prefetcher.asks:
            self._forecast_ahead(self._prefetcher, layer, residual, a, routing)
        return routing

    def compute(self, layer: int, a: Activations, routing: Routing) -> Array:
        """As `ExpertProvider.compute`. Raises ReadFailure when an expert's bytes cannot be had; the next call starts
        clean.
        """
        state = self._slots.state(layer)
        if self._noted is routing and state.whole:
            self._noted = None
            return self._backend.experts(a, state.table, routing.topk_ids, routing.topk_weights)
        call = self._slots.call
        if call is None or call.routing is not routing or call.layer != layer:
            call = self._gate(layer, a, routing)
        self._slots.call = call
        backend, table, groups = self._backend, state.table, call.groups
        h, d = backend.pair_buffers(groups.token_ids.size, table.intermediate_size, table.hidden_size)
        while call.open_groups:
            gate_up, down = self._next_work(call, state)
            if gate_up.size:
                backend.expert_gate_up(a, table, groups, gate_up, h)
            if down.size:
                backend.expert_down(h, table, groups, down, d)
                self._leave(call, state, down)
            if call.open_groups:
                self._slots.settle(self.queue.take(block=False))
        combined = backend.expert_combine(d, groups, routing.topk_weights)
        self._account(call)
        self._slots.call = None
        self._broken = False
        return combined

    def _account(self, call: GateCall) -> None:
        """Forecasts of a layer that waited for experts afterwards have delayed nothing."""
        if not call.waited:
            self.demand.forecast_s += call.forecast_s
        self.demand.all_forecast_s += call.forecast_s
        if self.auto is not None:
            self.auto.layer_done(call.waited)

    def end(self) -> None:
        if self._broken and self.queue.forget_queued():  # else the next call waits for what is in flight, not this one
            self._recover()
        elif self.auto is not None and not self._broken:
            self.auto.end()
        self.last_call = self.totals - self._before

    def close(self) -> None:
        if self.auto is not None:
            self.auto.say()
        self.queue.close()

    def drop_residents(self) -> None:
        """Empty every slot, as at the start of a process; usage history stays, but not that of cache-aware routing.
        Only between two calls.
        """
        self._routing.reset()
        for state in self.layers:
            if state is not None:
                state.evacuate()
        self._recover()
        if self.auto is not None:
            self.auto.restart()

    def route_by(self, routing: RoutingPolicy) -> None:
        """Change the routing policy, between two calls. Where its logical cache has the slots' capacities it becomes
        their record too, else each layer keeps a record of its own.
        """
        if self.auto is not None:
            self.auto.pause(not routing.exact)
            self._next_use = self.auto.next_use
        logical = routing.logical
        together = logical is not None and logical.serves(
            [state.own_cache.capacity if state is not None else None for state in self.layers]
        )
        for state in self.layers:
            if state is not None:
                state.keep_by(logical.layers[state.layer] if logical is not None and together else None)
        self._routing = routing

    def landed(self, layer: int) -> np.ndarray:
        """bool [E], fresh: experts whose bytes are there now. It depends on when copies arrive."""
        here: np.ndarray = self._slots.state(layer).slot_of >= 0
        return here

    def load_experts(
        self, pairs: Iterable[tuple[int, int]], progress: Callable[[int], None] | None = None
    ) -> None:
        """See `SlotKeeper.load_experts`."""
        self._broken = True
        self._slots.load_experts(pairs, progress)
        self._broken = False

    def _recover(self) -> None:
        self._slots.recover()
        self._broken = False

    def _forecast_ahead(
        self, prefetcher: Prefetcher, layer: int, residual: Array, a: Activations, routing: Routing
    ) -> None:
        """Ask for forecasts: at once while the link is free, else when those already here are computed, because until
        then it reads what this layer demands.
        """
        if self._slots.call is not None and self._slots.call.demanded:
            self._meanwhile = lambda: prefetcher.forecast(layer, residual, a, routing)
        else:
            prefetcher.forecast(layer, residual, a, routing)

    def _note_use(self, state: LayerState, routing: Routing) -> None:
        """All that the gate of a whole layer asks for: its experts are here and stay."""
        arrivals = self.queue.take(block=False)
        if arrivals:
            self._slots.settle(arrivals)
        topk_ids, history = routing.topk_ids, state.cache.history
        if topk_ids.shape[0] == 1:
            self.demand.hits[state.layer] += topk_ids.shape[1]
        else:
            self.demand.hits[state.layer] += np.unique(topk_ids).size
        for row in topk_ids:
            history.note(row)
        self._slots.call = None
        self._noted = routing

    def _gate(self, layer: int, a: Activations, routing: Routing) -> GateCall:
        """Everything that is known at the gate: hits, what the budget keeps from now on, and the demands."""
        self._broken = True
        state = self._slots.state(layer)
        self._slots.settle(self.queue.take(block=False))
        groups = group_by_expert(routing.topk_ids)
        call = GateCall(layer, routing, groups, state.cache.resident)
        slots = state.slot_of[groups.expert_ids].tolist()
        missing = [expert for expert, slot in zip(call.group_of, slots, strict=True) if slot < 0]
        self.demand.hits[layer] += len(slots) - len(missing)
        self.demand.misses[layer] += len(missing)
        at_once = self._known_to_stay(state, routing)
        if missing and at_once:
            self._demand_missing(state, call, missing, only_free=True)
        if not state.cache.logical:  # else the routing policy has told it
            self._note_event(state, call, a, len(missing))
        call.all_stay = not missing and self._slots.nothing_leaves(state)
        if call.all_stay:
            state.note_whole()
        else:
            self._slots.drop_unwanted(state, call)
        call.ready = [group for group, slot in enumerate(slots) if slot >= 0]
        if missing and not at_once:
            self._demand_missing(state, call, missing)
        elif call.todo:
            self._queue_todo(call, state)
        return call

    def _known_to_stay(self, state: LayerState, routing: Routing) -> bool:
        """Whether missing experts may be demanded, as far as slots are free, before it is known what leaves: one
        token's, which will all stay. Whoever decides what leaves then works while they are read.
        """
        one_token = len(routing.topk_ids) == 1 and state.cache.capacity >= routing.topk_ids.shape[1]
        return self._demands_first and one_token

    def _note_event(self, state: LayerState, call: GateCall, a: Activations, n_missing: int) -> None:
        """Tell the budget of every token's experts, in order, with what is forecast of their next use."""
        topk_ids, next_use = call.routing.topk_ids, None
        if self._next_use is not None and state.cache.capacity < state.num_experts:
            started = time.perf_counter()
            next_use = self._next_use.expected(state.layer, self._backend.to_host(a.x), topk_ids)
            call.forecast_s = time.perf_counter() - started
            self._expected[state.layer] = next_use[-1]
        for token, row in enumerate(topk_ids):
            state.cache.event(row, next_use[token] if next_use is not None else None)
        if self.auto is not None:
            self.auto.gate(state, topk_ids, n_missing, next_use[-1] if next_use is not None else None)

    def _follow(self, inserted: Inserted) -> None:
        """The routing policy has stocked a later layer's cache: let its slots follow while this layer computes."""
        state = self._slots.state(inserted.layer)
        new, evicted = inserted.expert_ids, inserted.evicted
        if not state.cache.logical:
            new = new[~state.cache.resident[new]][: state.cache.capacity]
            if not new.size:
                return
            expected = self._expected.get(inserted.layer)
            if expected is None and self._next_use is not None:
                expected = np.zeros(state.num_experts)
            evicted = state.cache.insert(new, expected)
        self._slots.copy_ahead(state, new, evicted)
