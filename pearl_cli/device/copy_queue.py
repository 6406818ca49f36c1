"""The transfer queue from host memory to the device: chunk copies on one side stream, demands before forecasts.

It has no threads and never waits for the device. A load has *arrived*, for the host, as soon as its copies are under
way: whoever computes with it makes the computing stream wait for the load's mark (`SlotMarks.copied`). Rules:
- a demand's chunks are started at once; of forecasts only DEPTH chunks are under way, so a demand waits for no more;
- the slot-table entry follows the last chunk on the same stream;
- copies into a slot begin after the last kernel that read it (`SlotMarks.used`);
- an expert that host memory lacks is read from disk first, and only then is there anything to wait for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from kernels.gpu.device_calls import Region
from pearl_cli.device.device_side import DeviceSide
from pearl_cli.device.host_slots import Key
from pearl_cli.device.host_tier import HostTier
from pearl_cli.residency.ablations import CopyPieces
from pearl_cli.residency.load import ALL_LINEARS, Arrival, Load
from pearl_cli.residency.stats import TransferStats

DEPTH = 2  # forecast chunks under way: one is copied while the host starts the next
_ALL = 1 << 30
LINK_BYTES_PER_S = 20e9  # where nobody has measured it: PCIe 4 with 16 lanes


class CopyQueue:
    """`pearl_cli.residency.load_queue.LoadQueue`. Called from one thread; owns `host`."""

    def __init__(
        self,
        side: DeviceSide,
        host: HostTier,
        most_at_once: int,
        link_bytes_per_s: float = LINK_BYTES_PER_S,
        pieces: CopyPieces | None = None,
    ) -> None:
        """most_at_once: arrivals that `take` hands out together, so that a long prompt computes some experts while
        others are copied; link_bytes_per_s: what busy times in `stats` are reckoned by, for the host does not see
        copies end; pieces: what may be switched off, to measure its worth.
        """
        self.stats = TransferStats()
        self.host = host
        self.link_bytes_per_s = link_bytes_per_s
        self._calls = side.calls
        self._copies = side.copies
        self._compute = side.compute
        self._arena = side.arena
        self._table = side.table
        self._marks = side.marks
        self._most_at_once = most_at_once
        pieces = pieces or CopyPieces()
        self._depth = DEPTH if pieces.preempt else _ALL
        self._chunks = 1 if pieces.chunk else _ALL
        self._low: deque[Load] = deque()
        self._low_marks: deque[int] = deque()  # of forecast chunks under way
        self._disk: dict[Key, Load] = {}  # demanded, and not in host memory yet
        self._arrivals: deque[Arrival] = deque()

    def demand(self, loads: Sequence[Load]) -> None:
        for load in loads:
            self._demand(load)
        self.host.start_reads()

    def prefetch(self, loads: Sequence[Load]) -> None:
        for load in loads:
            if not self.host.has(_key(load)):
                self.host.fetch(_key(load), demanded=False)
            self._low.append(load)
        self._pump()
        self.host.start_reads()

    def promote(self, loads: Sequence[Load]) -> None:
        for load in loads:
            load.demanded = True
            self.stats.promoted += 1
            if load.waiting:
                self._low.remove(load)
                self._demand(load)
        self.host.start_reads()

    def drop(self, load: Load) -> bool:
        """As `TransferQueue.drop`. Copies under way need no waiting for: later ones into the slot come after them."""
        load.dropped = True
        self.stats.dropped += 1
        if load.waiting:
            load.waiting = 0
            if load in self._low:
                self._low.remove(load)
            self.host.give_up(_key(load))
        return load.outstanding == 0

    def take(self, block: bool, cancelled: Callable[[], bool] | None = None) -> list[Arrival]:
        """Loads whose copies have been started since. With `block`, wait for the disk while there is nothing else."""
        self._serve_disk(block=False)
        self._pump()
        while block and not self._arrivals and (self._disk or self._low):
            if cancelled is not None and cancelled():
                break
            if not self._disk and self.host.has(_key(self._low[0])):
                self._start_chunk(self._low[0])  # whoever waits has nothing but forecasts to wait for
                continue
            started = time.perf_counter()
            if not self._serve_disk(block=True, cancelled=cancelled):
                for load in self._low:
                    self.host.fetch(_key(load), demanded=False)  # it left host memory again before its turn
            self.stats.stall_s += time.perf_counter() - started
        return self._hand_out(self._most_at_once)

    def forget_queued(self) -> bool:
        self._low.clear()
        self._disk.clear()
        return self.host.queue.forget_queued()

    def abort(self) -> list[Arrival]:
        self._low.clear()
        self._disk.clear()
        self.host.abort()
        return self._hand_out(len(self._arrivals))

    def idle(self) -> bool:
        return not self._low and not self._disk and self.host.queue.idle()

    def close(self) -> None:
        self._copies.synchronize(self._copies.mark())
        self.host.close()
        self._table.close()

    def _demand(self, load: Load) -> None:
        if self.host.has(_key(load)):
            while load.waiting:
                self._start_chunk(load)
        else:
            self._disk[_key(load)] = load
            self.host.fetch(_key(load), demanded=True)

    def _serve_disk(self, block: bool, cancelled: Callable[[], bool] | None = None) -> bool:
        """Start copies of what came from disk; False when nothing did."""
        fetched = self.host.take(block, cancelled)
        for item in fetched:
            load = self._disk.pop(item.key, None)
            if load is None:
                load = next((low for low in self._low if _key(low) == item.key), None) if item.error else None
                if load is None:
                    continue  # a forecast has its turn in `_pump`
                self._low.remove(load)
            if item.error is None:
                self._demand(load)
            else:
                load.waiting = 0
                load.outstanding += 1
                self._arrivals.append(Arrival(load, ALL_LINEARS, item.error))
        return bool(fetched)

    def _pump(self) -> None:
        """Keep DEPTH chunks of forecasts under way."""
        while self._low_marks and self._copies.is_over(self._low_marks[0]):
            self._low_marks.popleft()
        for load in list(self._low):
            if len(self._low_marks) >= self._depth:
                return
            while load.waiting and len(self._low_marks) < self._depth and self.host.has(_key(load)):
                for _ in range(min(self._chunks, load.waiting.bit_count())):
                    self._start_chunk(load)

    def _start_chunk(self, load: Load) -> None:
        """Start the copy of the next matrix; behind the last one the slot-table entry, and the load has arrived."""
        bit = load.waiting & -load.waiting
        linear, place, slot = bit.bit_length() - 1, load.places[bit.bit_length() - 1], load.slot
        stream, memory = self._copies.stream, self._arena.memory
        self._compute.wait(stream, self._marks.last_use(load.layer, load.expert, slot))
        target = self._arena.offset(slot, place)
        written = self._arena.region(slot, place, (*_key(load), linear))

        def copy(source: np.ndarray, offset: int, read: Region) -> None:
            begin = written.begin + offset
            part = Region(written.block, begin, begin + source.nbytes, written.tag)
            self._calls.copy_in(stream, memory, target + offset, source, (read,), (part,))

        self.host.send(_key(load), linear, copy)
        load.waiting &= ~bit
        self.stats.add_read(place.n_bytes, load.demanded)
        self.stats.busy_s += place.n_bytes / self.link_bytes_per_s
        if not load.demanded:
            load.early_bytes += place.n_bytes
            self._low_marks.append(self._copies.mark())
            self.host.sent(_key(load), self._low_marks[-1])  # the rest may be dropped, and its place in RAM taken
        if not load.waiting:
            self._finish(load)

    def _finish(self, load: Load) -> None:
        key, slot = _key(load), load.slot
        addresses = [self._arena.address(slot, place) for place in load.places]
        there = [self._arena.region(slot, place, (*key, i)) for i, place in enumerate(load.places)]
        mark = self._table.flip(*key, slot, addresses, there)
        self._marks.copied[slot] = mark
        self.host.sent(key, mark)
        if load in self._low:
            self._low.remove(load)
        load.outstanding += 1
        self._arrivals.append(Arrival(load, ALL_LINEARS))

    def _hand_out(self, limit: int) -> list[Arrival]:
        arrivals = [self._arrivals.popleft() for _ in range(min(limit, len(self._arrivals)))]
        for arrival in arrivals:
            arrival.load.outstanding -= 1
        return arrivals


def _key(load: Load) -> Key:
    return load.layer, load.expert


