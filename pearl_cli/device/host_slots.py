"""What host memory holds of the experts: all of them where they fit, else the last ones asked for, in slots.

A store in RAM that is page-locked is that memory itself: all experts are here from the start, and none leaves. Nobody
computes here, so the rule of what leaves is plain: the expert that was asked for longest ago and that no copy still
reads. How experts come here from disk is not decided here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from kernels.gpu.device_calls import DeviceCalls, Region
from kernels.gpu.timeline import Timeline
from models.gguf_files import MemoryFiles
from pearl_cli.device.host_store import HostStore, Send
from pearl_cli.residency.arena import SlotArena, Slots
from pearl_cli.residency.in_place import InPlaceSlots
from pearl_cli.residency.placement import Place

_LOOKED_AT = 16  # oldest experts that are asked whether a copy still reads them, before the host waits for one

Key = tuple[int, int]
"""(layer, expert)"""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """classes: (slot_bytes, count); class_of_layer: -1 for a layer without experts; lock_limit_bytes: how much of it
    may be page-locked; store: one whose region is page-locked already and holds every expert, so that slots are numbers
    without bytes.
    """

    classes: tuple[tuple[int, int], ...]
    class_of_layer: tuple[int, ...]
    lock_limit_bytes: int
    store: MemoryFiles | None = None

    @property
    def n_bytes(self) -> int:
        return 0 if self.store is not None else sum(slot_bytes * count for slot_bytes, count in self.classes)


class HostSlots:
    """Owns its arena, and its being page-locked until `close`."""

    def __init__(
        self,
        calls: DeviceCalls,
        copies: Timeline,
        places: Sequence[Sequence[tuple[Place, ...]]],
        plan: HostPlan,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """places[layer][expert]: where the three matrices lie, as `ExpertPlaces.places`."""
        self._calls = calls
        self._copies = copies
        self._places = places
        self._class_of_layer = plan.class_of_layer
        self._num_classes = len(plan.classes)
        self._arena, region = _slots(plan)
        self._base = region.ctypes.data
        self.store = HostStore(calls, copies, region, plan.lock_limit_bytes, notify, is_locked=plan.store is not None)
        self._slot_of: OrderedDict[Key, int] = OrderedDict()  # whole experts, asked for longest ago first
        self._sent = [0] * self._arena.num_slots  # mark of the last copy that reads the slot
        if plan.store is not None:
            self._adopt_all()

    @property
    def n_bytes(self) -> int:
        return self._arena.n_bytes

    @property
    def holds_all(self) -> bool:
        """Whether there is a slot for every expert."""
        return self._arena.num_slots >= sum(len(triples) for triples in self._places)

    def has(self, key: Key) -> bool:
        """Whether the whole expert is here; asking makes it the newest."""
        if key not in self._slot_of:
            return False
        self._slot_of.move_to_end(key)
        return True

    def send(self, key: Key, linear: int, copy: Send) -> None:
        """Start copies of one matrix of an expert that is here; follow the last of an expert with `sent`."""
        slot, place = self._slot_of[key], self._places[key[0]][key[1]][linear]
        begin = self._begin(slot, place)
        self.store.send(begin, begin + place.n_bytes, (*key, linear), copy)

    def sent(self, key: Key, mark: int) -> None:
        """The expert's slot may be overwritten once the copying stream has come to `mark`."""
        if not self.store.source_is_read_at_once:
            self._sent[self._slot_of[key]] = mark

    def address(self, key: Key, linear: int) -> int:
        """Where a matrix of an expert that is here lies, for computing it on the host."""
        slot, place = self._slot_of[key], self._places[key[0]][key[1]][linear]
        return self._arena.address(slot, place)

    def close(self) -> None:
        self.store.close()

    def _adopt_all(self) -> None:
        """Every expert is here without a read."""
        for layer, triples in enumerate(self._places):
            for expert, places in enumerate(triples):
                slot = self._slot_of[layer, expert] = self._arena.take(self._class_of_layer[layer])
                for linear, place in enumerate(places):
                    self._name_content(slot, place, (layer, expert, linear))

    def _name_content(self, slot: int, place: Place, tag: tuple[int, int, int]) -> None:
        begin = self._begin(slot, place)
        self._calls.host_writes(Region("host", begin, begin + place.n_bytes, tag))

    def _free_slot(self, size_class: int) -> int:
        """A slot that may be overwritten now, at the cost of the oldest expert; -1 while all are being filled."""
        slot = self._arena.take(size_class)
        if slot >= 0:
            return slot
        of_class = (key for key, at in self._slot_of.items() if self._arena.class_of[at] == size_class)
        oldest = list(islice(of_class, _LOOKED_AT))
        if not oldest:
            return -1
        over = (key for key in oldest if self._copies.is_over(self._sent[self._slot_of[key]]))
        slot = self._slot_of.pop(next(over, oldest[0]))
        self._copies.synchronize(self._sent[slot])
        return slot

    def _begin(self, slot: int, place: Place) -> int:
        """Offset of a matrix within the region."""
        return self._arena.address(slot, place) - self._base


def _slots(plan: HostPlan) -> tuple[Slots, np.ndarray]:
    """Slots and the memory that they are in."""
    if plan.store is not None:
        return InPlaceSlots(plan.classes, plan.store.address), plan.store.region
    arena = SlotArena(plan.classes)
    return arena, arena.region
