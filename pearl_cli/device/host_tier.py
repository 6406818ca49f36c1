"""The tier behind the device: experts in host memory (`HostSlots`), and how those that it lacks come there: from disk,
by the same transfer queue that serves a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kernels.gpu.device_calls import DeviceCalls, Region
from kernels.gpu.timeline import Timeline
from models.errors import ReadFailure
from pearl_cli.device.host_slots import HostPlan, HostSlots, Key
from pearl_cli.residency.load import ALL_LINEARS, LINEAR_BITS, Load
from pearl_cli.residency.placement import Place
from pearl_cli.residency.transfer import ReadFunction, TransferQueue


@dataclass(frozen=True, slots=True)
class Fetched:
    """An expert is in host memory now, or `error` says why it is not."""

    key: Key
    error: Exception | None = None


class HostTier(HostSlots):
    """Owns the threads that read from disk; `close` ends them."""

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
        super().__init__(calls, copies, places, plan, notify)
        self.queue = TransferQueue(read, io_threads)
        self._loads: dict[Key, Load] = {}
        self._todo: dict[Key, None] = {}  # demanded and without a slot yet, in order; the next: forecast likewise
        self._hoped: dict[Key, None] = {}
        self._errors: dict[Key, Exception] = {}  # of loads with reads still out

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
        super().close()

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
