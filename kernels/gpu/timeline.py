"""`Timeline`: numbered marks in the work of one stream, out of a fixed ring of events.

A mark is an integer that only grows; 0 is "before everything" and always over. Work of one stream runs in order, so
when a mark is over all smaller ones are, and a mark whose event has been used again is stood for by the oldest one
that still has its own. No event is made after the constructor.
"""

from __future__ import annotations

from kernels.gpu.device_calls import DeviceCalls, Stream

RING = 64


class Timeline:
    def __init__(self, calls: DeviceCalls, stream: Stream, ring: int = RING) -> None:
        self.stream = stream
        self.newest = 0
        self._calls = calls
        self._events = [calls.new_event() for _ in range(ring)]
        self._over = 0  # known to the host
        self._waited: dict[int, int] = {}  # id of a waiting stream -> mark it already waits for

    def mark(self) -> int:
        """A mark after all work given to the stream so far."""
        self.newest += 1
        self._calls.record(self._events[self.newest % len(self._events)], self.stream)
        return self.newest

    def wait(self, stream: Stream, mark: int) -> None:
        """Work given to `stream` from now on begins when `mark` is over. The host does not wait."""
        if mark > self._waited.get(id(stream), 0):
            held = self._held(mark)
            self._calls.wait(stream, self._events[held % len(self._events)])
            self._waited[id(stream)] = held

    def is_over(self, mark: int) -> bool:
        """Whether the host may go by it; never waits."""
        if mark > self._over:
            held = self._held(mark)
            if not self._calls.done(self._events[held % len(self._events)]):
                return False
            self._over = held
        return True

    def synchronize(self, mark: int) -> None:
        """The host waits for `mark`, unless it is over."""
        if not self.is_over(mark):
            held = self._held(mark)
            self._calls.synchronize(self._events[held % len(self._events)])
            self._over = held

    def _held(self, mark: int) -> int:
        """`mark`, or the oldest later one that still has its event."""
        return max(mark, self.newest - len(self._events) + 1)
