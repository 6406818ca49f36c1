"""Fetch experts that a predictor expects, into slots that no budgeted expert needs, while the link has nothing more
urgent.

A forecast expert that has landed is a *guest*: it is physically resident but belongs to no layer's budget. Guests
become useful when their layer's gate selects them, else their slots go back. This file decides what to ask for; the
controller owns slots that demands need.
"""

from __future__ import annotations

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


class Prefetcher:
    """depth: forecast experts in flight or landed per later layer at most."""

    def __init__(
        self,
        predictor: Predictor,
        layers: Sequence[LayerState | None],
        arena: Slots,
        queue: LoadQueue,
        depth: int,
        governor: PrefetchGovernor | None = None,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self.governor = governor or PrefetchGovernor()
        self._predictor = predictor
        self._layers = layers
        self._arena = arena
        self._queue = queue
        self._depth = depth
        self._notify = notify
        self._guests: dict[tuple[int, int], int] = {}  # (layer, expert) -> size class, oldest first

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        self._predictor.begin(token_ids, start, phase)
        verdict = self.governor.observe_link(self._queue.stats)
        if verdict is not None and self._notify is not None:
            self._notify(verdict)

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> None:
        """Ask the predictor and queue what pays; called after the demands of `layer` are queued. Switched off, it costs
        nothing.
        """
        if not self.governor.enabled:
            return
        loads: list[Load] = []
        for forecast in self._predictor.forecast(layer, residual, a, routing):
            state = self._layers[forecast.layer]
            if state is not None:
                loads += self._loads_for(state, forecast.scores)
        if loads:
            self._queue.prefetch(loads)

    def _loads_for(self, state: LayerState, scores: np.ndarray) -> list[Load]:
        """Loads for the likeliest experts that are neither here nor on their way, as far as slots are free."""
        wanted = np.argsort(-scores, kind="stable")[: self._depth].tolist()
        threshold = self.governor.threshold
        loads = []
        for expert in wanted:
            if scores[expert] < threshold:
                break
            if state.slot_of[expert] >= 0 or expert in state.loads:
                continue
            slot = self._arena.take(state.size_class)
            if slot < 0:
                break
            state.cache.history.touched_cycle[expert] = state.cache.history.cycle
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
