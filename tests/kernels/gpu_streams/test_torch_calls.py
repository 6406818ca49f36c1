"""What `TorchCalls` asks of torch, noted by a stand-in for `torch.cuda`; no GPU is needed to see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.gpu.device_calls import DeviceMemoryError
from kernels.gpu.timeline import Timeline
from kernels.gpu.torch_calls import TorchCalls


class FakeEvent:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def record(self, stream: Any) -> None:
        self.log.append(f"record {stream}")

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.log.append("synchronize")


class FakeStream:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def __repr__(self) -> str:
        return self.name

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits")


class FakeGraph:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def capture_begin(self, pool: str, capture_error_mode: str) -> None:
        self.log.append(f"begin in {pool}")

    def capture_end(self) -> None:
        self.log.append("end")

    def replay(self) -> None:
        self.log.append("replay")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls in order; memory is the host's; registering more than 4096 bytes is refused."""
    log: list[str] = []
    names = iter(("compute", "side"))

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        log.append(f"on {stream}")
        yield

    def register(address: int, n_bytes: int, flags: int) -> int:
        return 2 if n_bytes > 4096 else 0

    def unregister(address: int) -> int:
        log.append("unregister")
        return 0

    empty = torch.empty
    fakes = {
        "is_available": lambda: True,
        "get_device_name": lambda: "a card",
        "Stream": lambda: FakeStream(log, next(names)),
        "Event": lambda: FakeEvent(log),
        "CUDAGraph": lambda: FakeGraph(log),
        "set_stream": lambda stream: log.append(f"current {stream}"),
        "stream": on,
        "graph_pool_handle": lambda: "pool",
        "mem_get_info": lambda: (3, 5),
        "cudart": lambda: SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def empty_there(n_bytes: int, dtype: Any, device: str) -> Any:
        if n_bytes > 1 << 20:
            raise torch.OutOfMemoryError("full")
        return empty(n_bytes, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty_there)
    return log


def test_copies_and_marks_on_the_side_stream(log: list[str]) -> None:
    calls = TorchCalls()
    assert calls.name == "a card"
    assert log == ["current compute"]
    copies = Timeline(calls, calls.new_stream())
    memory = calls.device_memory(64)
    log.clear()
    calls.copy_in(copies.stream, memory, 8, np.arange(16, dtype=np.uint8))
    copies.wait(calls.compute, copies.mark())
    assert log == ["on side", "record side", "compute waits"]
    assert memory.array[8:24].tolist() == list(range(16))
    assert calls.words(memory).shape == (8,)
    copies.synchronize(1)
    assert log[-1] == "synchronize"
    assert calls.run(lambda: 7) == 7
    assert calls.memory_info() == (3, 5)


def test_memory_that_is_not_to_be_had(log: list[str]) -> None:
    with pytest.raises(DeviceMemoryError, match="2097152 bytes"):
        TorchCalls().device_memory(2 << 20)


def test_page_locking(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal leaves an error behind that the next launch would report: it is taken at once."""
    calls, small, large = TorchCalls(), np.zeros(4096, np.uint8), np.zeros(8192, np.uint8)
    taken: list[str] = []

    def zeros(*args: Any, **kwargs: Any) -> None:
        taken.append(kwargs["device"])
        raise RuntimeError("invalid argument")

    monkeypatch.setattr(torch, "zeros", zeros)
    assert calls.pin(small)
    assert taken == []
    assert not calls.pin(large)
    assert taken == ["cuda"]
    calls.unpin(large)
    assert "unregister" not in log
    calls.unpin(small)
    calls.unpin(small)
    assert log.count("unregister") == 1


def test_a_recording_ends_also_when_the_work_fails(log: list[str]) -> None:
    calls = TorchCalls()
    log.clear()
    calls.capture(lambda: log.append("work")).replay()
    assert log == ["on compute", "begin in pool", "work", "end", "replay"]
    log.clear()
    with pytest.raises(ZeroDivisionError):
        calls.capture(lambda: log.append(str(1 // 0)))
    assert log[-1] == "end"


def test_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no CUDA device"):
        TorchCalls()
