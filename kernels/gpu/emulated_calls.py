"""`EmulatedCalls`: a device made of host memory whose streams run in any order that their events allow.

Copies and launches are put off; at every call a seeded scheduler lets some of them happen, now on one stream, now on
another. Two runs with two seeds are two timings of the same program. A `RaceChecker` sees every operation, so that an
order that was only luck is an error too. For tests, and for trying the GPU path on a machine without one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from kernels.gpu.device_calls import DeviceMemory, DeviceMemoryError, Region
from kernels.gpu.race_checker import Clock, RaceChecker

T = TypeVar("T")
_ALIGNMENT = 4096
_MOST_AT_ONCE = 4  # operations that may complete between two calls of the host


@dataclass(slots=True)
class _Operation:
    work: Callable[[], object]
    waits: list[tuple[int, int]]  # (stream, position) that must be complete before


@dataclass(slots=True, eq=False)
class EmulatedStream:
    index: int
    clock: Clock
    enqueued: int = 0
    completed: int = 0
    queue: deque[_Operation] = field(default_factory=deque)
    waits: list[tuple[int, int]] = field(default_factory=list)  # of the next operation


@dataclass(slots=True, eq=False)
class EmulatedEvent:
    stream: int = 0
    position: int = 0
    clock: Clock = field(default_factory=list)


class EmulatedGraph:
    """Replays the steps that were recorded, see `kernels.gpu.emulated_graph`."""

    def __init__(self, calls: EmulatedCalls, steps: Sequence[Callable[[], object]]) -> None:
        self._calls = calls
        self._steps = steps

    def replay(self, reads: Sequence[Region] = ()) -> None:
        self._calls.counts["graph replays"] += 1
        self._calls.run(self._do, reads, name="graph")

    def _do(self) -> None:
        for step in self._steps:
            step()


class EmulatedCalls:
    """`kernels.gpu.device_calls.DeviceCalls`. `counts` says how often each call was made.

    device_bytes, pinned_bytes: what there is of each; None: no limit. free_bytes_told: what `memory_info` says is free
    (a driver may lie); negative: it fails. as_array: the backend's view of host memory, for a backend that computes on
    torch tensors.
    """

    name = "emulated"
    max_streams = 8

    def __init__(
        self,
        seed: int = 0,
        checked: bool = True,
        device_bytes: int = 1 << 40,
        pinned_bytes: int | None = None,
        free_bytes_told: int | None = None,
        as_array: Callable[[np.ndarray], Any] = np.asarray,
    ) -> None:
        self.checked = checked
        self.counts: Counter[str] = Counter()
        self.device_bytes_used = 0
        self._rng = np.random.default_rng(seed)
        self._checker = RaceChecker()
        self._streams: list[EmulatedStream] = []
        self._as_array = as_array
        self._host: Clock = [0] * self.max_streams
        self._device_bytes = device_bytes
        self.pinned_bytes_left = pinned_bytes
        self._free_bytes_told = free_bytes_told
        self.compute = self.new_stream()

    def new_stream(self) -> EmulatedStream:
        if len(self._streams) == self.max_streams:
            raise ValueError(f"the emulation has {self.max_streams} streams")
        self._streams.append(EmulatedStream(len(self._streams), [0] * self.max_streams))
        return self._streams[-1]

    def new_event(self) -> EmulatedEvent:
        self.counts["events"] += 1
        return EmulatedEvent(clock=[0] * self.max_streams)

    def record(self, event: EmulatedEvent, stream: EmulatedStream) -> None:
        self.counts["records"] += 1
        if stream.waits:  # what the stream waits for is over too when the event completes
            stream.enqueued += 1
            stream.queue.append(_Operation(_nothing, stream.waits))
            stream.waits = []
        event.stream, event.position, event.clock = stream.index, stream.enqueued, list(stream.clock)
        self._advance()

    def wait(self, stream: EmulatedStream, event: EmulatedEvent) -> None:
        self.counts["waits"] += 1
        stream.waits.append((event.stream, event.position))
        _join(stream.clock, event.clock)
        self._advance()

    def done(self, event: EmulatedEvent) -> bool:
        self._advance()
        if not self._complete(event.stream, event.position):
            return False
        _join(self._host, event.clock)
        return True

    def synchronize(self, event: EmulatedEvent) -> None:
        self.counts["synchronizations"] += 1
        self._run_until(event.stream, event.position)
        _join(self._host, event.clock)

    def device_memory(self, n_bytes: int) -> DeviceMemory:
        """Filled with 255, which as float32 is NaN, so that reading too early shows in the numbers too."""
        self.counts["device allocations"] += 1
        if self.device_bytes_used + n_bytes > self._device_bytes:
            raise DeviceMemoryError(f"{n_bytes} bytes wanted, {self._device_bytes - self.device_bytes_used} are free")
        self.device_bytes_used += n_bytes
        raw = np.full(n_bytes + _ALIGNMENT, 255, np.uint8)
        array = raw[-raw.ctypes.data % _ALIGNMENT :][:n_bytes]
        return DeviceMemory(self._as_array(array), array.ctypes.data, n_bytes)

    def words(self, memory: DeviceMemory) -> Any:
        return self._as_array(np.asarray(memory.array).view(np.int64))

    def pin(self, host: np.ndarray) -> bool:
        self.counts["pins"] += 1
        if self.pinned_bytes_left is None:
            return True
        if host.nbytes > self.pinned_bytes_left:
            return False
        self.pinned_bytes_left -= host.nbytes
        return True

    def unpin(self, host: np.ndarray) -> None:
        if self.pinned_bytes_left is not None:
            self.pinned_bytes_left += host.nbytes

    def copy_in(
        self, stream: EmulatedStream, target: DeviceMemory, offset: int, source: np.ndarray,
        reads: Sequence[Region] = (), writes: Sequence[Region] = (),
    ) -> None:
        self.counts["copies"] += 1
        self.counts["copied bytes"] += source.nbytes
        out = np.asarray(target.array[offset : offset + source.nbytes])
        if out.nbytes != source.nbytes:
            raise ValueError(f"{source.nbytes} bytes at {offset} do not fit memory of {target.n_bytes}")

        def work() -> None:
            out[:] = source

        self._enqueue("a copy", stream, work, reads, writes)

    def launch(
        self, work: Callable[[], None], reads: Sequence[Region] = (), writes: Sequence[Region] = (), name: str = ""
    ) -> None:
        self.counts[f"launch {name}"] += 1
        self._enqueue(name or "a kernel", self.compute, work, reads, writes)

    def run(self, work: Callable[[], T], reads: Sequence[Region] = (), name: str = "") -> T:
        self.counts[f"launch {name}"] += 1
        results: list[T] = []
        self._enqueue(name or "a kernel", self.compute, lambda: results.append(work()), reads, ())
        self._run_until(self.compute.index, self.compute.enqueued)
        return results[0]

    def host_writes(self, region: Region) -> None:
        if self.checked:
            self._checker.host_writes(self._host, region)

    def memory_info(self) -> tuple[int, int]:
        told = self._free_bytes_told
        if told is not None and told < 0:
            raise RuntimeError("the emulated driver does not know")
        return (self._device_bytes - self.device_bytes_used if told is None else told), self._device_bytes

    def capture(self, work: Callable[[], None]) -> EmulatedGraph:
        """Only of work on torch tensors and interpreted kernels."""
        from kernels.gpu.emulated_graph import record

        self.counts["captures"] += 1
        self._run_until(self.compute.index, self.compute.enqueued)
        return EmulatedGraph(self, record(work))

    def drain(self) -> None:
        """Let everything complete."""
        for stream in self._streams:
            self._run_until(stream.index, stream.enqueued)

    def _enqueue(
        self, name: str, stream: EmulatedStream, work: Callable[[], object], reads: Sequence[Region],
        writes: Sequence[Region],
    ) -> None:
        _join(stream.clock, self._host)
        stream.clock[stream.index] = stream.enqueued + 1
        if self.checked:
            self._checker.operation(name, stream.index, stream.clock, reads, writes)
        stream.enqueued += 1
        stream.queue.append(_Operation(work, stream.waits))
        stream.waits = []
        self._advance()

    def _complete(self, stream: int, position: int) -> bool:
        return self._streams[stream].completed >= position

    def _advance(self) -> None:
        for _ in range(int(self._rng.integers(0, _MOST_AT_ONCE + 1))):
            if not self._run_one():
                return

    def _run_until(self, stream: int, position: int) -> None:
        while not self._complete(stream, position):
            if not self._run_one():
                raise RuntimeError("the streams wait for each other")

    def _run_one(self) -> bool:
        """Complete one operation that nothing holds up, on a stream drawn at random. False: there is none."""
        ready = [s for s in self._streams if s.queue and all(self._complete(*at) for at in s.queue[0].waits)]
        if not ready:
            return False
        stream = ready[int(self._rng.integers(len(ready)))]
        operation = stream.queue.popleft()
        operation.work()
        stream.completed += 1
        return True


def _nothing() -> None:
    """A stream that only waits."""


def _join(clock: Clock, other: Clock) -> None:
    for i, position in enumerate(other):
        if position > clock[i]:
            clock[i] = position
