"""Fetch experts that a predictor expects, into slots that no budgeted expert needs, while the link has nothing more
urgent.

A forecast expert that has landed is a *guest*: it is physically resident but belongs to no layer's budget. Guests
become useful when their layer's gate selects them, else their slots go back. This file decides what to ask for; the
controller owns slots that demands need. In shadow, and where the governor rehearses, nothing is asked for: what would
have been is only scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from kernels.backend import Activations, Array
from models.expert_provider import Routing
from pearl_cli.predict.base import Predictor
from pearl_cli.residency.arena import Slots
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.load import Load
from pearl_cli.residency.load_queue import LoadQueue
from pearl_cli.residency.prefetch_governor import PrefetchGovernor
from pearl_cli.residency.shadow_score import ShadowScore


class Prefetcher:
    """depth: forecast experts in flight or landed per later layer at most. fetching: whether anything may be asked for;
    shadow: where forecasts are scored while nothing is.
    """

    def __init__(
        self,
        predictor: Predictor,
        layers: Sequence[LayerState | None],
        arena: Slots,
        queue: LoadQueue,
        depth: int,
        governor: PrefetchGovernor | None = None,
        notify: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.governor = governor or PrefetchGovernor()
        self.fetching = True
        self.shadow: ShadowScore | None = None
        self._predictor = predictor
        self._layers = layers
        self._arena = arena
        self._queue = queue
        self._depth = depth
        self._notify = notify
        self._now = now
        self._guests: dict[tuple[int, int], int] = {}  # (layer, expert) -> size class, oldest first

    @property
    def name(self) -> str:
        return self._predictor.name

    @property
    def idle(self) -> bool:
        """Nothing is fetched, and nothing that was lies about."""
        return not (self.fetching and self.governor.enabled) and not self._guests

    @property
    def asks(self) -> bool:
        """Whether forecasts are wanted, to fetch by or to score; if not, all calls cost next to nothing."""
        governor = self.governor
        return self.shadow is not None or (self.fetching and (governor.enabled or governor.rehearsing))

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        if self.shadow is None and not self.fetching:
            return
        verdict = self.governor.observe_link(self._queue.stats)
        if self.asks:
            self._predictor.begin(token_ids, start, phase)
        if verdict is not None and self._notify is not None:
            self._notify(verdict)

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> None:
        """Ask the predictor and queue what pays; called after the demands of `layer` are queued."""
        if not self.asks:
            return
        started = self._now()
        shadow = self.shadow
        if shadow is None and self.governor.rehearsing:
            shadow = self.governor.rehearsal
            self.governor.rehearse(layer, routing.topk_ids[-1])
        loads: list[Load] = []
        for forecast in self._predictor.forecast(layer, residual, a, routing):
            state = self._layers[forecast.layer]
            if state is None:
                continue
            wanted = self._wanted(state, forecast.scores)
            if shadow is not None:
                shadow.expect(forecast.layer, wanted)
            else:
                loads += self._loads_for(state, wanted)
        if shadow is not None:
            shadow.seconds += self._now() - started
        elif loads:
            self._queue.prefetch(loads)

    def _wanted(self, state: LayerState, scores: np.ndarray) -> list[int]:
        """The likeliest experts that are worth a fetch and neither here nor on their way."""
        threshold = self.governor.threshold
        if scores.max() < threshold:
            return []
        likeliest = np.argsort(-scores, kind="stable")[: self._depth]
        worth = likeliest[scores[likeliest] >= threshold].tolist()
        return [expert for expert in worth if state.slot_of[expert] < 0 and expert not in state.loads]

    def _loads_for(self, state: LayerState, wanted: list[int]) -> list[Load]:
        """Loads for `wanted`, as far as slots are free."""
        loads = []
        for expert in wanted[: self._arena.num_free(state.size_class)]:
            state.cache.history.touched_cycle[expert] = state.cache.history.cycle
            slot = self._arena.take(state.size_class)
            loads.append(state.new_load(expert, slot, self._arena, demanded=False))
        return loads

    def add_guest(self, layer: int, expert: int, size_class: int) -> None:
        self._guests[layer, expert] = size_class

    def forget_guest(self, layer: int, expert: int) -> bool:
        """True when the expert was a guest; it no longer is."""
        return self._guests.pop((layer, expert), None) is not None

    def oldest_guest(self, size_class: int) -> tuple[int, int] | None:
        return next((key for key, guest_class in self._guests.items() if guest_class == size_class), None)

    def forget_all(self) -> None:
        self._guests.clear()
