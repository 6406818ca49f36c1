"""`DeviceCalls`: the few things that streaming asks of a GPU: streams, events, page-locked memory, async copies.

`kernels.gpu.torch_calls` is the real one; `kernels.gpu.emulated_calls` completes work in any order that events allow
and checks for races. Kernels themselves are not here: they are launched by the backend on the stream `compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

Stream = Any
Event = Any
T = TypeVar("T")


class DeviceMemoryError(MemoryError):
    """The device cannot give that many bytes."""


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes begin..end-1 of `block`, for race checking only. `tag` says what the bytes are: written with it, and
    demanded by readers that name one.
    """

    block: Hashable
    begin: int
    end: int
    tag: Hashable = None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """`array` uint8 [n_bytes] on the device, in the form of the backend's arrays; `address` of its first byte."""

    array: Any
    address: int
    n_bytes: int


class Graph(Protocol):
    """A recorded sequence of launches."""

    def replay(self, reads: Sequence[Region] = ()) -> None:
        """Launch all of it on `compute`; reads: as for `DeviceCalls.launch`."""
        ...


class DeviceCalls(Protocol):
    """One device seen by one host thread. `checked`: whether reads and writes are looked at, so that callers may save
    the work of naming them.
    """

    name: str
    checked: bool
    compute: Stream

    def new_stream(self) -> Stream: ...

    def new_event(self) -> Event:
        """An event that nothing has been recorded in counts as complete."""
        ...

    def record(self, event: Event, stream: Stream) -> None:
        """`event` completes when all work given to `stream` so far has."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Work given to `stream` from now on begins after `event`. The host does not wait."""
        ...

    def done(self, event: Event) -> bool:
        """Whether it has completed; never waits."""
        ...

    def synchronize(self, event: Event) -> None:
        """The host waits for one event: never for the whole device."""
        ...

    def device_memory(self, n_bytes: int) -> DeviceMemory:
        """Uninitialised memory that starts on a border of at least 256 bytes. Raises DeviceMemoryError."""
        ...

    def words(self, memory: DeviceMemory) -> Any:
        """The same memory as int64 [n_bytes / 8], in the form of the backend's arrays."""
        ...

    def pin(self, host: np.ndarray) -> bool:
        """Page-lock uint8 host memory where it lies, so that copies from it run beside the host. False: the system
        refuses; copies from there still work, while the host waits.
        """
        ...

    def unpin(self, host: np.ndarray) -> None:
        """Undo `pin`, before the memory is given back."""
        ...

    def copy_in(
        self, stream: Stream, target: DeviceMemory, offset: int, source: np.ndarray, reads: Sequence[Region] = (),
        writes: Sequence[Region] = (),
    ) -> None:
        """Copy uint8 `source` to `target` from byte `offset` on. It must stay unchanged until the copy is complete."""
        ...

    def launch(
        self, work: Callable[[], None], reads: Sequence[Region] = (), writes: Sequence[Region] = (), name: str = ""
    ) -> None:
        """Give `work`, which launches kernels on `compute`, to the device; nobody looks at its results before `run`."""
        ...

    def run(self, work: Callable[[], T], reads: Sequence[Region] = (), name: str = "") -> T:
        """As `launch`, for work whose result the caller passes on to further kernels."""
        ...

    def host_writes(self, region: Region) -> None:
        """The host is about to overwrite, or has filled with `region.tag`, memory that copies read. For checking."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device, as far as the driver knows. Raises RuntimeError when it does not."""
        ...

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record the launches of `work`, which must use fixed shapes and addresses and not wait for the device."""
        ...
