"""The transfer queue: reader threads fetch chunks (one linear each) of experts into slots, demands before forecasts.

One lock guards all of it. A `Load` is one expert on its way into one slot. Rules:
- the next chunk is always that of the oldest demand; a forecast is read only while no demand waits, so a demand
  overtakes at a chunk border;
- a forecast found demanded is promoted in place; a forecast found wrong loses the chunks that no reader has begun;
- a chunk being read is never cancelled: its slot is busy until the reader has returned;
- neighbours in the file are fetched by one read, up to `merge_bytes`: linears of an expert, and experts of one priority
  that nobody has begun, which land in slots of their own.
The queue knows nothing of layers' budgets, policies or kernels.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from pearl_cli.residency.load import LINEAR_BITS, Arrival, Load
from pearl_cli.residency.neighbours import Neighbours
from pearl_cli.residency.placement import mergeable
from pearl_cli.residency.read_piece import ReadPiece
from pearl_cli.residency.stats import TransferStats

MERGE_BYTES = 1 << 20  # longest read that a demand has to wait behind beyond one chunk

_LONGEST_WAIT_S = 0.1  # a signal just before a wait begins is seen when it ends, not only at the next arrival

ReadFunction = Callable[[int, int, memoryview, int], None]
"""(file_index, offset, out, needed_bytes): fill `out`; raise an exception when that many bytes are not to be had."""
ScatterFunction = Callable[[int, int, Sequence[memoryview], int], None]
"""The same into several pieces of memory, one behind the other in the file."""


class TransferQueue:
    """Owns its reader threads; `close` ends them. All methods but `close` are called from one thread."""

    def __init__(
        self,
        read: ReadFunction,
        n_threads: int = 1,
        merge_bytes: int = MERGE_BYTES,
        preempt: bool = True,
        scatter: ScatterFunction | None = None,
    ) -> None:
        """preempt False: first come, first read, for measuring what overtaking is worth. scatter: reads several experts
        at once; None: each is read alone.
        """
        if n_threads < 1:
            raise ValueError(f"at least one reader thread is needed, got {n_threads}")
        self.stats = TransferStats()
        self._read = read
        self._scatter = scatter
        self._merge_bytes = merge_bytes
        self._neighbours = Neighbours()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._landed = threading.Condition(self._lock)
        self._high: deque[Load] = deque()
        self._low: deque[Load] = deque() if preempt else self._high
        self._arrivals: list[Arrival] = []
        self._in_flight = 0
        self._busy_since = 0.0
        self._idle_readers = 0
        self._taker_waits = False
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"pearl-read-{i}", daemon=True) for i in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def demand(self, loads: Sequence[Load]) -> None:
        """Queue loads at high priority, in the given order."""
        now = time.perf_counter()
        with self._lock:
            for load in loads:
                load.queued_at = now
                self._high.append(load)
                self._neighbours.add(load)
            self._wake(len(loads))

    def prefetch(self, loads: Sequence[Load]) -> None:
        """Queue loads at low priority, in the given order."""
        now = time.perf_counter()
        with self._lock:
            for load in loads:
                load.queued_at = now
                self._low.append(load)
                self._neighbours.add(load)
            self._wake(len(loads))

    def promote(self, loads: Sequence[Load]) -> None:
        """Forecasts that turned out demanded go to high priority; what has been read stays read."""
        with self._lock:
            for load in loads:
                load.demanded = True
                self.stats.promoted += 1
                if load.waiting:
                    self._high.append(load)
            self._wake(len(loads))

    def drop(self, load: Load) -> bool:
        """Give up a forecast. True: its slot is free now; False: it is free once its last outstanding arrival has been
        taken.
        """
        with self._lock:
            load.waiting = 0
            load.dropped = True
            self.stats.dropped += 1
            return load.outstanding == 0

    def take(self, block: bool, cancelled: Callable[[], bool] | None = None) -> list[Arrival]:
        """Arrivals since the last call, in order of arrival. With `block`, wait for one while any work is queued or in
        flight and `cancelled`, asked ten times a second, does not say True.
        """
        if not block and not self._arrivals:
            return []
        with self._lock:
            if block and not self._arrivals:
                self._wait_for_arrival(cancelled)
            return self._hand_out()

    def _wait_for_arrival(self, cancelled: Callable[[], bool] | None) -> None:
        started = time.perf_counter()
        self._taker_waits = True
        try:
            while not self._arrivals and (self._in_flight or self._has_waiting()):
                if cancelled is not None and cancelled():
                    return
                self._landed.wait(_LONGEST_WAIT_S)
        finally:
            self._taker_waits = False
            self.stats.stall_s += time.perf_counter() - started

    def forget_queued(self) -> bool:
        """Drop whatever no reader has begun. True when nothing is in flight either."""
        with self._lock:
            self._high.clear()
            self._low.clear()
            self._neighbours.clear()
            return not self._in_flight

    def abort(self) -> list[Arrival]:
        """Forget everything queued, wait for the reads in flight and return every arrival not taken yet."""
        self.forget_queued()
        with self._lock:
            self._taker_waits = True
            try:
                while self._in_flight:
                    self._landed.wait(_LONGEST_WAIT_S)
            finally:
                self._taker_waits = False
            return self._hand_out()

    def _hand_out(self) -> list[Arrival]:
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            arrival.load.outstanding -= 1
        return arrivals

    def idle(self) -> bool:
        """True when nothing is queued and nothing is being read."""
        with self._lock:
            return not self._in_flight and not self._has_waiting()

    def close(self) -> None:
        """End the threads after the reads in flight. Idempotent."""
        with self._lock:
            self._closed = True
            self._high.clear()
            self._low.clear()
            self._work.notify_all()
        for thread in self._threads:
            thread.join()

    def _wake(self, n_loads: int) -> None:
        if self._idle_readers:
            self._work.notify(len(LINEAR_BITS) * n_loads)  # readers may share one expert

    def _has_waiting(self) -> bool:
        return any(load.waiting for load in self._high) or any(load.waiting for load in self._low)

    def _serve(self) -> None:
        """One reader thread: pick a chunk, read it without the lock, hand it over, pick the next under the same lock.
        """
        with self._lock:
            while True:
                picked = self._pick()
                if picked is None:
                    if self._closed:
                        return
                    self._idle_readers += 1
                    self._work.wait()
                    self._idle_readers -= 1
                    continue
                demanded = picked[0].load.demanded
                started = time.perf_counter()
                if not self._in_flight:
                    self._busy_since = started
                self._in_flight += 1
                self.stats.queue_wait_s += started - picked[0].load.queued_at
                self._lock.release()
                try:
                    error = self._fetch(picked)
                finally:
                    self._lock.acquire()
                self._hand_over(picked, error, demanded)

    def _fetch(self, pieces: Sequence[ReadPiece]) -> Exception | None:
        first = pieces[0].first
        outs = [piece.out for piece in pieces]
        needed = sum(len(out) for out in outs[:-1]) + pieces[-1].needed_bytes
        try:
            if len(outs) == 1 or self._scatter is None:
                self._read(first.file_index, first.file_offset, outs[0], needed)
            else:
                self._scatter(first.file_index, first.file_offset, outs, needed)
        except Exception as error:  # raised again by whoever takes the arrival
            return error
        return None

    def _hand_over(self, pieces: Sequence[ReadPiece], error: Exception | None, demanded: bool) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            self.stats.busy_s += time.perf_counter() - self._busy_since
        if error is None:
            self.stats.add_read(sum(piece.n_bytes for piece in pieces), demanded)
        for piece in pieces:
            load = piece.load
            if error is not None:
                load.waiting = 0
                load.early_bytes -= 0 if demanded else piece.n_bytes
            self._arrivals.append(Arrival(load, piece.mask, error))
        if self._taker_waits:
            self._landed.notify()

    def _pick(self) -> list[ReadPiece] | None:
        """The next read, in file order. Caller holds the lock."""
        for queue, is_low in ((self._high, False), (self._low, True)):
            while queue:
                load = queue[0]
                if not load.waiting or (is_low and load.demanded):  # read, dropped, or moved to the other queue
                    queue.popleft()
                    continue
                return self._begin_run(load)
        return None

    def _begin_run(self, load: Load) -> list[ReadPiece]:
        """Begin `load`, with its neighbours where all of them fit into one read."""
        if self._scatter is None:
            return [self._begin(load)]
        run = self._neighbours.run_of(load, self._merge_bytes)
        self.stats.merged_experts += len(run) - 1
        return [self._begin(each) for each in run]

    def _begin(self, load: Load) -> ReadPiece:
        index = (load.waiting & -load.waiting).bit_length() - 1
        first = last = load.places[index]
        mask = 1 << index
        n_bytes = first.read_bytes
        for i in range(index + 1, len(load.places)):
            place = load.places[i]
            n_bytes += place.read_bytes
            if not load.waiting >> i & 1 or n_bytes > self._merge_bytes or not mergeable(last, place):
                break
            last = place
            mask |= 1 << i
            self.stats.merged_chunks += 1
        load.waiting &= ~mask
        load.outstanding += 1
        piece = ReadPiece(load, first, last, mask)
        if not load.demanded:
            load.early_bytes += piece.n_bytes
        return piece
