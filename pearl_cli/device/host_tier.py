"""The tier behind the device: experts in host memory, all of them where they fit, else the last ones asked for.

A store in RAM that is page-locked is that memory itself: all experts are here from the start, and none leaves. Else
what the host lacks is read from disk by the same transfer queue that serves a machine without a GPU. Nobody computes
here, so the rule of what leaves is plain: the expert that was asked for longest ago and that no copy still reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from kernels.gpu.device_calls import DeviceCalls, Region
from kernels.gpu.timeline import Timeline
from models.errors import ReadFailure
from models.gguf_files import MemoryFiles
from pearl_cli.device.host_store import HostStore, Send
from pearl_cli.residency.arena import SlotArena, Slots
from pearl_cli.residency.in_place import InPlaceSlots
from pearl_cli.residency.placement import Place
from pearl_cli.residency.transfer import ALL_LINEARS, LINEAR_BITS, Load, ReadFunction, TransferQueue

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


@dataclass(frozen=True, slots=True)
class Fetched:
    """An expert is in host memory now, or `error` says why it is not."""

    key: Key
    error: Exception | None = None


class HostTier:
    """Owns its arena and the threads that read from disk; `close` ends them."""

    def __init__(
        self,
        calls: DeviceCalls,
        copies: Timeline,
        places: Sequence[Sequence[tuple[Place, ...]]],
        plan: HostPlan,
        read: ReadFunction,
        io_threads: int = 1,
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
        self.queue = TransferQueue(read, io_threads)
        self._slot_of: OrderedDict[Key, int] = OrderedDict()  # whole experts, asked for longest ago first
        self._loads: dict[Key, Load] = {}
        self._todo: dict[Key, None] = {}  # demanded and without a slot yet, in order; the next: forecast likewise
        self._hoped: dict[Key, None] = {}
        self._errors: dict[Key, Exception] = {}  # of loads with reads still out
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

    def fetch(self, key: Key, demanded: bool) -> None:
        """Have an expert that is not here read from disk; `start_reads` begins, `take` tells when it is here."""
        load = self._loads.get(key)
        if load is not None and not load.dropped:
            if demanded and not load.demanded:
                self.queue.promote([load])
            return
        if demanded:
            self._hoped.pop(key, None)
            self._todo[key] = None
        elif key not in self._todo:
            self._hoped[key] = None

    def give_up(self, key: Key) -> None:
        """Nobody wants the expert any more; what a reader has begun is read to the end."""
        self._hoped.pop(key, None)
        load = self._loads.get(key)
        if load is not None and not load.demanded and self.queue.drop(load):
            self._forget(key)

    def take(self, block: bool, cancelled: Callable[[], bool] | None = None) -> list[Fetched]:
        """Experts that came in, or failed to, since the last call. With `block`, wait for one if any is on its way.

        They are safe until the next call: only that gives their slots to others.
        """
        fetched: list[Fetched] = []
        while True:
            self.start_reads()
            for arrival in self.queue.take(block and bool(self._loads), cancelled):
                fetched += self._note(arrival.load, arrival.mask, arrival.error)
            stopped = cancelled is not None and cancelled()
            if fetched or not block or stopped or not self._loads:
                return fetched

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

    def fill(self, keys: Iterable[Key]) -> None:
        """Read experts in the given order while there is room. Raises ReadFailure."""
        for key in keys:
            if key in self._slot_of or key in self._loads:
                continue
            slot = self._arena.take(self._class_of_layer[key[0]])
            if slot >= 0:
                self._start(key, slot, demanded=True)
        while self._loads:
            for fetched in self.take(block=True):
                if fetched.error is not None:
                    raise ReadFailure(str(fetched.error)) from fetched.error

    def abort(self) -> None:
        """Forget what is on its way from disk; waits for the reads in flight."""
        self._todo.clear()
        self._hoped.clear()
        for arrival in self.queue.abort():
            self._note(arrival.load, arrival.mask, arrival.error)
        for key in list(self._loads):
            self._forget(key)
        self._errors.clear()

    def close(self) -> None:
        self.queue.close()
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

    def _note(self, load: Load, mask: int, error: Exception | None) -> list[Fetched]:
        key = (load.layer, load.expert)
        if error is not None:
            load.dropped = True
            self._errors.setdefault(key, error)
        if load.dropped:
            if load.outstanding or self._loads.get(key) is not load:  # another arrival of it was the last
                return []
            self._forget(key)
            failure = self._errors.pop(key, None)
            return [Fetched(key, failure)] if failure is not None else []
        load.landed |= mask
        for linear, bit in enumerate(LINEAR_BITS):
            if mask & bit:
                self._name_content(load.slot, load.places[linear], (*key, linear))
        if load.landed != ALL_LINEARS:
            return []
        del self._loads[key]
        self._slot_of[key] = load.slot
        return [Fetched(key)]

    def _forget(self, key: Key) -> None:
        self._arena.release(self._loads.pop(key).slot)

    def start_reads(self) -> None:
        """Give slots to the experts that wait for one, demands first."""
        full: set[int] = set()  # size classes
        for waiting, demanded in ((self._todo, True), (self._hoped, False)):
            started = []
            for key in waiting:
                size_class = self._class_of_layer[key[0]]
                if size_class in full or key in self._loads:  # a dropped read of it is still out
                    continue
                slot = self._free_slot(size_class)
                if slot < 0:
                    full.add(size_class)
                    if len(full) == self._num_classes:
                        break
                    continue
                self._start(key, slot, demanded)
                started.append(key)
            for key in started:
                del waiting[key]

    def _start(self, key: Key, slot: int, demanded: bool) -> None:
        places = self._places[key[0]][key[1]]
        view = self._arena.views[slot]
        begin = self._arena.addresses[slot] - self._base
        self._calls.host_writes(Region("host", begin, begin + len(view)))
        load = Load(*key, slot, view, places, demanded)
        self._loads[key] = load
        (self.queue.demand if demanded else self.queue.prefetch)([load])

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
