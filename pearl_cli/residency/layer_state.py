"""Where the experts of one layer are right now: slots, addresses, and loads on their way.

Physical state only. Which experts ought to be kept is `LayerCache`'s answer and never depends on what stands here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.backend import ExpertTable
from pearl_cli.residency.arena import Slots
from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.load import ALL_LINEARS, Load
from pearl_cli.residency.placement import Place


class LayerState:
    """slot_of: int32 [E], the slot whose three matrices have all landed, else -1. loads: experts queued or in flight.
    cache: what to keep, `own_cache` or the logical cache of the routing policy. whole: every expert is here and none
    can leave, so that a call need only note its use.
    """

    __slots__ = (
        "cache", "expert_bytes", "layer", "loads", "own_cache", "places", "size_class", "slot_of", "table", "whole",
    )  # fmt: skip

    def __init__(
        self, layer: int, places: Sequence[tuple[Place, ...]], size_class: int, cache: LayerCache, shape: tuple[int,
        int]
    ) -> None:
        """places: one triple per expert; shape: (hidden_size, intermediate_size)."""
        self.layer = layer
        self.places = places
        self.size_class = size_class
        self.cache = self.own_cache = cache
        self.expert_bytes = [sum(place.n_bytes for place in triple) for triple in places]
        self.loads: dict[int, Load] = {}
        self.whole = False
        n = len(places)
        self.slot_of = np.full(n, -1, np.int32)
        types = [np.array([int(triple[i].quant_type) for triple in places], np.uint8) for i in range(3)]
        self.table = ExpertTable(
            np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), types[0], types[1], types[2], *shape
        )

    @property
    def num_experts(self) -> int:
        return len(self.places)

    def new_load(self, expert: int, slot: int, arena: Slots, demanded: bool) -> Load:
        load = Load(self.layer, expert, slot, arena.views[slot], self.places[expert], demanded)
        self.loads[expert] = load
        return load

    def land(self, load: Load, mask: int, arena: Slots) -> None:
        """Point the table at the linears of `mask`; the whole expert is resident once all three are there."""
        load.landed |= mask
        table = self.table
        for i, addresses in enumerate((table.gate, table.up, table.down)):
            if mask >> i & 1:
                addresses[load.expert] = arena.address(load.slot, load.places[i])
        if load.landed == ALL_LINEARS:
            self.slot_of[load.expert] = load.slot
            self.loads.pop(load.expert, None)

    def note_whole(self) -> None:
        """Set `whole`, where the budget keeps all experts of the layer and all of them have landed."""
        everything = self.cache.capacity == self.num_experts and not self.cache.logical and not self.loads
        self.whole = everything and bool(self.cache.resident.all()) and bool((self.slot_of >= 0).all())

    def vacate(self, expert: int, arena: Slots) -> None:
        """Give the slot of a resident expert back."""
        slot = int(self.slot_of[expert])
        self.slot_of[expert] = -1
        self.whole = False
        self.clear_addresses(expert)
        arena.release(slot)

    def clear_addresses(self, expert: int) -> None:
        self.table.gate[expert] = self.table.up[expert] = self.table.down[expert] = 0

    def evacuate(self) -> None:
        """Give every slot up; the caller recovers."""
        self.slot_of[:] = -1
        self.whole = False
        if not self.cache.logical:
            self.cache.resident[:] = False

    def keep_by(self, logical: LayerCache | None) -> None:
        """From now on keep what `logical` holds, or (None) what `own_cache` does, which then starts from what is here.
        """
        self.whole = False
        if logical is not None:
            self.cache = logical
        elif self.cache.logical:
            self.cache = self.own_cache
            self.cache.resident[:] = False
            self.cache.resident[np.flatnonzero(self.slot_of >= 0)[: self.cache.capacity]] = True

    def recover(self) -> set[int]:
        """After an interrupted call: forget loads and whatever the cache does not keep; returns the slots still in use.
        A logical cache keeps its members, to be demanded again.
        """
        self.loads.clear()
        self.whole = False
        gone = ~self.cache.resident | (self.slot_of < 0)
        self.slot_of[gone] = -1
        for addresses in (self.table.gate, self.table.up, self.table.down):
            addresses[gone] = 0
        if not self.cache.logical:
            self.cache.resident[gone] = False
        return set(self.slot_of[~gone].tolist())
