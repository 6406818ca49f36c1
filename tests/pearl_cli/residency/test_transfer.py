"""The queue's order: demands before forecasts at the next chunk, promotion, drops, merged reads, failures, shutdown."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from kernels.quant_types import QuantType
from pearl_cli.residency.load import ALL_LINEARS, Load
from pearl_cli.residency.placement import PAGE, Place
from pearl_cli.residency.transfer import TransferQueue
from tests.fake_experts import GatedReads

EXPERT_BYTES = 3 * PAGE


def places_of(expert: int, apart: bool = True) -> tuple[Place, ...]:
    """Chunks of one page each; `apart` leaves a page between them in the file, so that they cannot merge."""
    step = 2 if apart else 1
    return tuple(
        Place(0, (expert * 100 + i * step) * PAGE, PAGE, i * PAGE, 0, PAGE, QuantType.F32) for i in range(3)
    )


def load_of(expert: int, demanded: bool, apart: bool = True) -> Load:
    view = memoryview(bytearray(EXPERT_BYTES))
    return Load(0, expert, expert, view, places_of(expert, apart), demanded)


@pytest.fixture
def gated() -> GatedReads:
    def read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        out[:] = bytes([offset // PAGE % 251]) * len(out)

    return GatedReads(read)


@pytest.fixture
def queue(gated: GatedReads) -> Iterator[TransferQueue]:
    queue = TransferQueue(gated, n_threads=1)
    yield queue
    gated.allow(1000)
    queue.close()


def begun(gated: GatedReads) -> list[tuple[int, int]]:
    """(expert, linear) of each read, in order of begin."""
    return [(offset // PAGE // 100, offset // PAGE % 100 // 2) for offset, _ in gated.started]


def take_all(queue: TransferQueue, n_linears: int) -> list[tuple[int, int]]:
    """Block until that many linears have landed; (expert, mask) in order."""
    landed: list[tuple[int, int]] = []
    while sum(mask.bit_count() for _, mask in landed) < n_linears:
        landed += [(arrival.load.expert, arrival.mask) for arrival in queue.take(block=True)]
    return landed


def test_a_demand_overtakes_at_the_next_chunk(queue: TransferQueue, gated: GatedReads) -> None:
    queue.prefetch([load_of(1, False), load_of(2, False)])
    gated.began.acquire()  # the first chunk of expert 1 is being read
    queue.demand([load_of(3, True)])
    gated.allow(9)
    take_all(queue, 9)
    assert begun(gated) == [(1, 0), (3, 0), (3, 1), (3, 2), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


def test_promotion_moves_the_rest_ahead(queue: TransferQueue, gated: GatedReads) -> None:
    first, second = load_of(1, False), load_of(2, False)
    queue.prefetch([first, second])
    gated.began.acquire()
    queue.promote([second])
    gated.allow(6)
    take_all(queue, 6)
    assert begun(gated) == [(1, 0), (2, 0), (2, 1), (2, 2), (1, 1), (1, 2)]
    assert second.demanded
    assert queue.stats.promoted == 1
    assert (queue.stats.demand_bytes, queue.stats.prefetch_bytes) == (3 * PAGE, 3 * PAGE)


def test_a_wrong_forecast_is_dropped_before_it_is_read(queue: TransferQueue, gated: GatedReads) -> None:
    begun_load, untouched = load_of(1, False), load_of(2, False)
    queue.prefetch([begun_load, untouched])
    gated.began.acquire()
    assert queue.drop(untouched)  # its slot is free at once
    assert not queue.drop(begun_load)  # one chunk is in flight: the slot is not
    gated.allow(1)
    arrivals = queue.take(block=True)
    assert [(a.load, a.mask) for a in arrivals] == [(begun_load, 1)]
    assert begun_load.outstanding == 0
    queue.demand([load_of(3, True)])
    gated.allow(3)
    take_all(queue, 3)
    assert begun(gated) == [(1, 0), (3, 0), (3, 1), (3, 2)]


def test_neighbours_are_read_at_once(gated: GatedReads) -> None:
    queue = TransferQueue(gated, n_threads=1, merge_bytes=2 * PAGE)
    load = load_of(4, True, apart=False)
    queue.demand([load])
    gated.allow(2)
    assert take_all(queue, 3) == [(4, 0b011), (4, 0b100)]
    assert gated.started == [(400 * PAGE, 2 * PAGE), (402 * PAGE, PAGE)]
    got = np.frombuffer(load.view, np.uint8)[::PAGE].tolist()
    assert got == [400 % 251, 400 % 251, 402 % 251]
    queue.close()


def test_two_readers_share_one_expert(gated: GatedReads) -> None:
    queue = TransferQueue(gated, n_threads=2)
    queue.demand([load_of(5, True)])
    gated.began.acquire()
    gated.began.acquire()
    assert sorted(begun(gated)) == [(5, 0), (5, 1)]
    gated.allow(3)
    take_all(queue, 3)
    queue.close()


def test_a_failed_read_arrives_as_an_error_and_ends_its_load() -> None:
    def read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        if offset // PAGE == 102:  # the second linear of expert 1
            raise OSError("broken sector")

    queue = TransferQueue(read)
    queue.demand([load_of(1, True), load_of(2, True)])
    seen = []
    while sum(load == 2 for load, _ in seen) < 3:
        seen += [(a.load.expert, str(a.error) if a.error else a.mask) for a in queue.take(block=True)]
    assert seen == [(1, 1), (1, "broken sector"), (2, 1), (2, 2), (2, 4)]
    queue.close()


def test_taking_from_an_idle_queue_does_not_wait(queue: TransferQueue) -> None:
    assert queue.take(block=True) == []
    assert queue.take(block=False) == []


def test_abort_waits_for_the_read_in_flight_and_forgets_the_rest(queue: TransferQueue, gated: GatedReads) -> None:
    load = load_of(1, True)
    queue.demand([load, load_of(2, True)])
    gated.began.acquire()
    threading.Timer(0.02, gated.allow).start()
    arrivals = queue.abort()
    assert [(a.load.expert, a.mask) for a in arrivals] == [(1, 1)]
    assert len(gated.started) == 1
    queue.demand([load_of(3, True)])
    gated.allow(3)
    assert take_all(queue, 3) == [(3, 1), (3, 2), (3, 4)]


def test_close_ends_the_threads() -> None:
    before = threading.active_count()
    queue = TransferQueue(lambda *_: None, n_threads=3)
    queue.demand([load_of(expert, True) for expert in range(20)])
    take_all(queue, 1)
    queue.close()
    queue.close()
    assert threading.active_count() == before


def test_stalls_are_counted_only_while_waiting(queue: TransferQueue, gated: GatedReads) -> None:
    gated.allow(3)
    queue.demand([load_of(1, True)])
    while queue.stats.reads < 3:
        pass
    take_all(queue, 3)
    assert queue.stats.stall_s == 0
    queue.demand([load_of(2, True)])
    threading.Timer(0.03, gated.allow, [3]).start()
    take_all(queue, 3)
    assert queue.stats.stall_s > 0.01


def test_every_linear_lands_exactly_once_under_load() -> None:
    queue = TransferQueue(lambda *_: None, n_threads=4, merge_bytes=2 * PAGE)
    loads = [load_of(expert, expert % 3 == 0, apart=expert % 2 == 0) for expert in range(200)]
    queue.prefetch([load for load in loads if not load.demanded])
    queue.demand([load for load in loads if load.demanded])
    masks = {load.expert: 0 for load in loads}
    while not all(mask == ALL_LINEARS for mask in masks.values()):
        for arrival in queue.take(block=True):
            assert masks[arrival.load.expert] & arrival.mask == 0
            masks[arrival.load.expert] |= arrival.mask
    assert all(load.outstanding == 0 for load in loads)
    queue.close()


def test_no_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one reader thread"):
        TransferQueue(lambda *_: None, n_threads=0)


def side_by_side(expert: int, demanded: bool) -> Load:
    """Experts of three pages each, one behind the other in the file, each byte telling its page."""
    places = tuple(
        Place(0, (expert * 3 + i) * PAGE, PAGE, i * PAGE, 0, PAGE, QuantType.F32) for i in range(3)
    )
    return Load(0, expert, expert, memoryview(bytearray(EXPERT_BYTES)), places, demanded)


class Scattered(GatedReads):
    """`runs` lists the pages of each read of several experts."""

    def __init__(self) -> None:
        super().__init__(lambda _, offset, out, needed: self.fill(offset, out))
        self.runs: list[list[int]] = []

    @staticmethod
    def fill(offset: int, out: memoryview) -> None:
        for page in range(len(out) // PAGE):
            out[page * PAGE : (page + 1) * PAGE] = bytes([offset // PAGE + page + 1]) * PAGE

    def many(self, file_index: int, offset: int, outs: list[memoryview], needed_bytes: int) -> None:
        assert needed_bytes == sum(map(len, outs))
        self.runs.append([offset // PAGE, *(len(out) // PAGE for out in outs)])
        self.started.append((offset, needed_bytes))
        self.began.release()
        self.permits.acquire()
        for out in outs:
            self.fill(offset, out)
            offset += len(out)


def landed_right(load: Load) -> bool:
    return bytes(load.view[::PAGE]) == bytes(load.expert * 3 + page + 1 for page in range(3))


def test_neighbours_in_the_file_come_with_one_read_into_their_own_slots() -> None:
    reads = Scattered()
    queue = TransferQueue(reads, n_threads=1, merge_bytes=100 * PAGE, scatter=reads.many)
    loads = {expert: side_by_side(expert, True) for expert in (9, 4, 2, 5, 3, 7)}
    reads.allow(100)
    with queue._lock:  # all of them are queued before the reader looks
        for load in loads.values():
            queue._high.append(load)
            queue._neighbours.add(load)
        queue._wake(len(loads))
    landed = take_all(queue, 18)
    assert sorted(expert for expert, mask in landed if mask == ALL_LINEARS) == sorted(loads)
    assert all(landed_right(load) for load in loads.values())
    assert reads.runs == [[6, 3, 3, 3, 3]]
    assert [offset // PAGE // 3 for offset, _ in reads.started] == [9, 2, 7]
    assert (queue.stats.reads, queue.stats.merged_experts) == (3, 3)
    queue.close()


def test_a_run_ends_at_the_limit_and_at_another_priority() -> None:
    reads = Scattered()
    queue = TransferQueue(reads, n_threads=1, merge_bytes=6 * PAGE, scatter=reads.many)
    queue.demand([side_by_side(20, True)])
    reads.began.acquire()  # the reader is busy while the rest is queued
    low = [side_by_side(expert, False) for expert in (4, 5)]
    high = [side_by_side(expert, True) for expert in (1, 2, 3)]
    queue.prefetch(low)
    queue.demand(high)
    reads.allow(100)
    take_all(queue, 18)
    assert all(landed_right(load) for load in (*low, *high))
    assert reads.runs == [[3, 3, 3], [12, 3, 3]], "experts 1 and 2, then 3 alone, then the forecasts 4 and 5"
    queue.close()


def test_what_was_begun_or_dropped_is_no_neighbour() -> None:
    reads = Scattered()
    queue = TransferQueue(reads, n_threads=1, merge_bytes=6 * PAGE, scatter=reads.many)
    begun_alone = side_by_side(1, True)
    queue.demand([begun_alone])
    reads.began.acquire()
    dropped, asked = side_by_side(3, False), side_by_side(2, True)
    queue.prefetch([dropped])
    queue.promote([dropped])
    queue.demand([asked])
    assert queue.drop(dropped)
    reads.allow(100)
    take_all(queue, 6)
    assert reads.runs == []
    assert bytes(dropped.view[:1]) == b"\0"
    queue.close()


def test_forgotten_experts_are_no_neighbours_later() -> None:
    reads = Scattered()
    queue = TransferQueue(reads, n_threads=1, merge_bytes=6 * PAGE, scatter=reads.many)
    queue.demand([side_by_side(20, True)])
    reads.began.acquire()
    forgotten = side_by_side(1, True)
    queue.demand([forgotten])
    queue.forget_queued()
    reads.allow(100)
    take_all(queue, 3)
    queue.demand([side_by_side(2, True)])
    take_all(queue, 3)
    assert reads.runs == []
    queue.close()


def test_a_failed_run_fails_every_expert_in_it() -> None:
    def fails(file_index: int, offset: int, outs: list[memoryview], needed_bytes: int) -> None:
        raise OSError("torn cable")

    reads = Scattered()
    queue = TransferQueue(reads, n_threads=1, merge_bytes=6 * PAGE, scatter=fails)
    queue.demand([side_by_side(20, True)])
    reads.began.acquire()
    queue.demand([side_by_side(1, True), side_by_side(2, True)])
    reads.allow(100)
    failed: set[int] = set()
    while len(failed) < 2:
        failed |= {a.load.expert for a in queue.take(block=True) if a.error is not None}
    assert failed == {1, 2}
    queue.close()
