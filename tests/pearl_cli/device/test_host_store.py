"""PIN-MEM: page-locking refused wholly or in part. It is said once, and experts still go to the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.gpu.device_calls import Region
from kernels.gpu.emulated_calls import EmulatedCalls
from kernels.gpu.race_checker import RaceError
from kernels.gpu.timeline import Timeline
from pearl_cli.device import host_store
from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.device.host_store import PinnedRing
from pearl_cli.memory_plan import MIB
from tests.fake_experts import FakeStore, run_calls
from tests.pearl_cli.device.streaming import device_controller

SIZES = [3, 1, 1, 9, 1, 1]


@pytest.mark.parametrize(
    ("pinned_bytes", "limit_bytes", "pinned", "said"),
    [
        (None, 1 << 40, "yes", ""),
        (2 * MIB, 1 << 40, "ring", "is refused (ulimit -l): copies go through a page-locked ring of 1MiB"),
        (None, 100, "ring", "would leave the system too little: copies go through a page-locked ring of 64MiB"),
        (0, 1 << 40, "no", "is refused (ulimit -l): copies go through pageable memory"),
    ],
)
def test_what_is_page_locked(
    tmp_path: Path, pinned_bytes: int | None, limit_bytes: int, pinned: str, said: str
) -> None:
    """The arena takes 4 MiB or so here."""
    store = FakeStore(tmp_path / "experts", num_experts=64)
    notes: list[str] = []
    calls = EmulatedCalls(2, pinned_bytes=pinned_bytes)
    with device_controller(
        store, calls, vram=0.1, lock_limit_bytes=limit_bytes, notify=notes.append
    ) as controller:
        assert isinstance(controller.queue, CopyQueue)
        assert controller.queue.host.store.pinned == pinned
        run_calls(controller, store, seed=1, sizes=SIZES)
    assert len(notes) == (1 if said else 0)
    if said:
        assert said in notes[0]
        assert notes[0].startswith("page-locking ")


@pytest.mark.parametrize("seed", range(4))
def test_a_ring_smaller_than_what_passes_through(seed: int) -> None:
    calls = EmulatedCalls(seed)
    side = calls.new_stream()
    copies = Timeline(calls, side)
    ring = PinnedRing(calls, copies, np.zeros(64, np.uint8))
    memory = calls.device_memory(1000)
    wanted = np.random.default_rng(seed).integers(0, 255, 1000).astype(np.uint8)
    at = 0
    for n_bytes in (10, 200, 1, 89, 32, 500, 168):
        view = wanted[at : at + n_bytes].copy()

        def copy(source: np.ndarray, offset: int, read: Region, at: int = at) -> None:
            written = Region("slot", at + offset, at + offset + source.nbytes)
            calls.copy_in(side, memory, at + offset, source, (read,), (written,))

        ring.send(view, ("piece", at), copy)
        view[:] = 0  # the host has read all of it
        at += n_bytes
    calls.drain()
    np.testing.assert_array_equal(memory.array, wanted)


def test_a_ring_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = EmulatedCalls(1)
    side = calls.new_stream()
    copies = Timeline(calls, side)
    ring = PinnedRing(calls, copies, np.zeros(64, np.uint8))
    memory = calls.device_memory(1000)
    monkeypatch.setattr(Timeline, "synchronize", lambda timeline, mark: None)

    def copy(source: np.ndarray, offset: int, read: Region) -> None:
        calls.copy_in(side, memory, offset, source, (read,))

    with pytest.raises(RaceError, match="a write of the host"):
        ring.send(np.ones(500, np.uint8), "piece", copy)


@pytest.mark.parametrize("pinned_bytes", [1 << 30, 2 * MIB])
def test_locked_memory_is_given_back(tmp_path: Path, pinned_bytes: int) -> None:
    """All of it, or the ring."""
    store = FakeStore(tmp_path / "experts", num_experts=64)
    calls = EmulatedCalls(1, pinned_bytes=pinned_bytes)
    with device_controller(store, calls, vram=0.1) as controller:
        run_calls(controller, store, seed=1, sizes=[1])
        assert calls.pinned_bytes_left < pinned_bytes
    assert calls.pinned_bytes_left == pinned_bytes


def test_some_memory_is_left_to_the_system() -> None:
    assert host_store.LOCK_SHARE <= 0.85
