"""The emulated device: every order that events allow happens, no other does, and races are seen whatever happened."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.gpu.device_calls import DeviceMemoryError, Region
from kernels.gpu.emulated_calls import EmulatedCalls
from kernels.gpu.race_checker import RaceError
from kernels.gpu.timeline import Timeline

BYTES = Region("slot", 0, 4)


def test_streams_run_in_every_order_and_each_in_its_own() -> None:
    orders = {tuple(two_streams(seed)) for seed in range(40)}
    assert all(seen[:2] == ("a", "b") for seen in orders)
    assert len(orders) > 3


def two_streams(seed: int) -> list[str]:
    """What the launches of one stream saw of the copies of another."""
    calls, seen = EmulatedCalls(seed), []
    side = calls.new_stream()
    memory = calls.device_memory(2)
    for name in "ab":
        calls.launch(lambda name=name: seen.append(name))
    for value in (1, 2):
        calls.copy_in(side, memory, value - 1, np.full(1, value, np.uint8))
        calls.launch(lambda: seen.append(str(memory.array.tolist())))
    calls.drain()
    assert memory.array.tolist() == [1, 2]
    return seen


@pytest.mark.parametrize("seed", range(10))
def test_an_event_orders_two_streams(seed: int) -> None:
    calls, seen = EmulatedCalls(seed), []
    side, event = calls.new_stream(), calls.new_event()
    memory = calls.device_memory(4)
    calls.copy_in(side, memory, 0, np.full(4, 7, np.uint8), writes=(BYTES,))
    calls.record(event, side)
    calls.wait(calls.compute, event)
    calls.launch(lambda: seen.append(memory.array.tolist()), (BYTES,))
    calls.drain()
    assert seen == [[7, 7, 7, 7]]


@pytest.mark.parametrize("seed", range(10))
def test_a_stream_that_only_waits_holds_up_its_event(seed: int) -> None:
    calls = EmulatedCalls(seed)
    first, second = calls.new_stream(), calls.new_stream()
    memory, one, two = calls.device_memory(4), calls.new_event(), calls.new_event()
    calls.copy_in(first, memory, 0, np.zeros(4, np.uint8))
    calls.record(one, first)
    calls.wait(second, one)
    calls.record(two, second)
    calls.synchronize(two)
    assert memory.array.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_reading_without_a_wait_is_a_race_in_every_order(seed: int) -> None:
    calls = EmulatedCalls(seed)
    memory = calls.device_memory(4)
    calls.copy_in(calls.new_stream(), memory, 0, np.zeros(4, np.uint8), writes=(BYTES,))
    with pytest.raises(RaceError, match="nothing orders"):
        calls.launch(lambda: None, (BYTES,), name="expert_down")


@pytest.mark.parametrize("seed", range(5))
def test_overwriting_what_a_kernel_may_still_read_is_a_race(seed: int) -> None:
    calls = EmulatedCalls(seed)
    memory, side = calls.device_memory(4), calls.new_stream()
    calls.launch(lambda: None, writes=(BYTES,))
    calls.launch(lambda: None, (BYTES,))
    with pytest.raises(RaceError, match="nothing orders"):
        calls.copy_in(side, memory, 0, np.zeros(4, np.uint8), writes=(BYTES,))


def test_the_host_may_overwrite_only_what_it_knows_to_be_copied() -> None:
    calls = EmulatedCalls(1)
    memory, side, source = calls.device_memory(4), calls.new_stream(), np.zeros(4, np.uint8)
    event, there = calls.new_event(), Region("host", 0, 4)
    calls.copy_in(side, memory, 0, source, (there,))
    calls.record(event, side)
    with pytest.raises(RaceError, match="a write of the host"):
        calls.host_writes(there)
    calls.synchronize(event)
    calls.host_writes(there)


def test_bytes_that_were_never_written_or_are_of_another_are_named() -> None:
    calls = EmulatedCalls(1)
    wanted = Region("slot", 0, 8, "expert 3")
    with pytest.raises(RaceError, match=r"wants expert 3 .* nothing yet"):
        calls.launch(lambda: None, (wanted,))
    calls.launch(lambda: None, writes=(Region("slot", 0, 8, "expert 3"),))
    calls.launch(lambda: None, (wanted,))
    calls.launch(lambda: None, writes=(Region("slot", 6, 12, "expert 4"),))
    with pytest.raises(RaceError, match=r"wants expert 3 .* expert 4"):
        calls.launch(lambda: None, (wanted,))
    calls.launch(lambda: None, (Region("slot", 0, 6, "expert 3"), Region("slot", 6, 12, "expert 4")))


def test_what_a_poll_found_done_orders_the_host() -> None:
    calls = EmulatedCalls(3)
    memory, side, event = calls.device_memory(4), calls.new_stream(), calls.new_event()
    calls.copy_in(side, memory, 0, np.zeros(4, np.uint8), writes=(BYTES,))
    calls.record(event, side)
    while not calls.done(event):
        pass
    calls.launch(lambda: None, (BYTES,))


def test_memory_ends() -> None:
    calls = EmulatedCalls(device_bytes=100, pinned_bytes=50)
    calls.device_memory(60)
    with pytest.raises(DeviceMemoryError, match="40 are free"):
        calls.device_memory(41)
    assert calls.pin(np.zeros(40, np.uint8))
    assert not calls.pin(np.zeros(11, np.uint8))


@pytest.mark.parametrize("seed", range(4))
def test_marks_of_a_timeline_outlive_their_events(seed: int) -> None:
    """A ring of 3 events and 12 marks: an old mark is stood for by a later one, never by one that is not over."""
    calls = EmulatedCalls(seed)
    side = calls.new_stream()
    memory, timeline = calls.device_memory(12), Timeline(calls, side, ring=3)
    marks = []
    for i in range(12):
        calls.copy_in(side, memory, i, np.full(1, i, np.uint8), writes=(Region("slot", i, i + 1, i),))
        marks.append(timeline.mark())
    assert marks == list(range(1, 13))
    for i in (4, 11):
        seen: list[list[int]] = []
        timeline.wait(calls.compute, marks[i])
        calls.launch(
            lambda i=i, seen=seen: seen.append(memory.array[: i + 1].tolist()),
            [Region("slot", k, k + 1, k) for k in range(i + 1)],
        )
        calls.drain()
        assert seen == [list(range(i + 1))]
    timeline.synchronize(marks[11])
    assert timeline.is_over(marks[11])
    assert timeline.is_over(0)
    waits = calls.counts["waits"]
    timeline.wait(calls.compute, marks[2])
    assert calls.counts["waits"] == waits  # it waits for a later one already
