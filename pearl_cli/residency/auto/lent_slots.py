"""Slots that layers' budgets lend to forecasts for as long as fetching ahead goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pearl_cli.residency.arena import Slots
from pearl_cli.residency.layer_state import LayerState

_LARGEST_SHARE = 4  # a layer lends at most one in so many of the experts it keeps


def share_of_layers(layers: Sequence[LayerState | None], slots_per_class: int) -> dict[int, int]:
    """Slots that each layer lends, so that every size class gives `slots_per_class` or what its layers can spare: in
    turn, the layers that keep most first.
    """
    shares: dict[int, int] = {}
    classes = {state.size_class for state in layers if state is not None}
    for size_class in classes:
        members = [state for state in layers if state is not None and state.size_class == size_class]
        room = {state.layer: state.own_cache.capacity // _LARGEST_SHARE for state in members}
        order = sorted(room, key=lambda layer: -room[layer])
        left = min(slots_per_class, sum(room.values()))
        while left:
            for layer in order:
                if left and shares.get(layer, 0) < room[layer]:
                    shares[layer] = shares.get(layer, 0) + 1
                    left -= 1
    return shares


class LentSlots:
    """Between two forward calls only."""

    def __init__(self, layers: Sequence[LayerState | None], arena: Slots) -> None:
        self._layers = layers
        self._arena = arena
        self._lent: dict[int, int] = {}

    @property
    def any(self) -> bool:
        return bool(self._lent)

    def lend(self, shares: Mapping[int, int], expected: Mapping[int, np.ndarray]) -> None:
        """Each layer of `shares` keeps so many experts less; their slots become free. expected: of each layer what its
        eviction policy goes by, where that looks ahead.
        """
        for layer, count in shares.items():
            state = self._layers[layer]
            if state is None:
                raise ValueError(f"layer {layer} has no experts to lend slots of")
            cache = state.own_cache
            forecast = expected.get(layer, np.zeros(state.num_experts))
            for expert in cache.resize(cache.capacity - count, forecast).tolist():
                if state.slot_of[expert] >= 0:
                    state.vacate(expert, self._arena)
            state.whole = False
            self._lent[layer] = self._lent.get(layer, 0) + count

    def give_back(self) -> None:
        """Layers may keep as many as before. Slots that forecasts still hold are taken from them on demand."""
        for layer, count in self._lent.items():
            state = self._layers[layer]
            if state is not None:
                state.own_cache.capacity += count
        self._lent.clear()
