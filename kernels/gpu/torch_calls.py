"""`TorchCalls`: streams, events, page-locked memory and copies of a CUDA (or ROCm) device through torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from kernels.gpu.device_calls import DeviceMemory, DeviceMemoryError, Region

T = TypeVar("T")


class TorchGraph:
    """A CUDA graph; its launches go where they were captured, on one stream."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def replay(self, reads: Sequence[Region] = ()) -> None:
        self._graph.replay()


class TorchCalls:
    """`kernels.gpu.device_calls.DeviceCalls` on the current CUDA device, for the thread that makes it, whose current
    stream is `compute` from then on. Raises RuntimeError when there is no device.
    """

    checked = False

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device")
        self.name: str = torch.cuda.get_device_name()
        # A stream of its own: the default one cannot be captured, and it waits for all others on some builds.
        self.compute = torch.cuda.Stream()
        torch.cuda.set_stream(self.compute)
        self._pinned: dict[int, int] = {}
        self._graph_pool = torch.cuda.graph_pool_handle()  # recordings run one after another: they share their memory

    def new_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream()

    def new_event(self) -> torch.cuda.Event:
        return torch.cuda.Event()  # without timing: cheaper to record and to wait for

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        event.record(stream)

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def done(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())

    def synchronize(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def device_memory(self, n_bytes: int) -> DeviceMemory:
        try:
            array = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(f"{n_bytes} bytes of device memory are not to be had") from error
        return DeviceMemory(array, array.data_ptr(), n_bytes)

    def words(self, memory: DeviceMemory) -> Any:
        return memory.array.view(torch.int64)

    def pin(self, host: np.ndarray) -> bool:
        """cudaHostRegister on memory that exists: torch's own pinned allocator rounds up to a power of two."""
        if host.nbytes == 0:
            return True
        address = host.ctypes.data
        if int(torch.cuda.cudart().cudaHostRegister(address, host.nbytes, 0)) != 0:
            _take_stale_error()
            return False
        self._pinned[address] = host.nbytes
        return True

    def unpin(self, host: np.ndarray) -> None:
        if self._pinned.pop(host.ctypes.data, None) is not None:
            torch.cuda.cudart().cudaHostUnregister(host.ctypes.data)

    def copy_in(
        self, stream: torch.cuda.Stream, target: DeviceMemory, offset: int, source: np.ndarray,
        reads: Sequence[Region] = (), writes: Sequence[Region] = (),
    ) -> None:
        with torch.cuda.stream(stream):
            target.array[offset : offset + source.nbytes].copy_(torch.from_numpy(source), non_blocking=True)

    def launch(
        self, work: Callable[[], None], reads: Sequence[Region] = (), writes: Sequence[Region] = (), name: str = ""
    ) -> None:
        work()

    def run(self, work: Callable[[], T], reads: Sequence[Region] = (), name: str = "") -> T:
        return work()

    def host_writes(self, region: Region) -> None:
        """Nothing is checked on a real device."""

    def memory_info(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info()
        return int(free), int(total)

    def capture(self, work: Callable[[], None]) -> TorchGraph:
        """By hand, because `torch.cuda.graph` collects garbage and waits for the device, once a layer."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.compute):
            graph.capture_begin(pool=self._graph_pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return TorchGraph(graph)


def _take_stale_error() -> None:
    """The next launch of anyone reports the refusal of `pin` once more; let it be this one."""
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError:
        return
