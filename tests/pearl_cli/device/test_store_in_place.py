"""A store in host memory is what copies to the device start from; where it cannot be locked, slots beside it are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.gpu.device_calls import DeviceMemory, Region
from kernels.gpu.emulated_calls import EmulatedCalls, EmulatedStream
from kernels.gpu.race_checker import RaceError
from pearl_cli.device import host_slots
from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.device.host_tier import HostTier
from pearl_cli.device.miss_rule import MissRule
from pearl_cli.device.store_in_place import lock_limit
from pearl_cli.residency.arena import SlotArena
from tests.fake_experts import FakeStore, run_calls
from tests.pearl_cli.device.memory_file import MemoryFile
from tests.pearl_cli.device.streaming import device_controller
from tests.pearl_cli.device.test_streamed_device import Guess

SIZES = [5, 1, 1, 1, 24, 1, 1, 2, 1]
MIB = 1 << 20


class Watched(EmulatedCalls):
    """Knows what is page-locked, and which copies started outside it."""

    def __init__(self, seed: int, **limits: Any) -> None:
        super().__init__(seed, **limits)
        self.locked: dict[int, int] = {}
        self.elsewhere = 0

    def pin(self, host: np.ndarray) -> bool:
        done = super().pin(host)
        if done:
            assert host.ctypes.data not in self.locked
            self.locked[host.ctypes.data] = host.nbytes
        return done

    def unpin(self, host: np.ndarray) -> None:
        super().unpin(host)
        assert self.locked.pop(host.ctypes.data) == host.nbytes

    def copy_in(
        self, stream: EmulatedStream, target: DeviceMemory, offset: int, source: np.ndarray,
        reads: Sequence[Region] = (), writes: Sequence[Region] = (),
    ) -> None:
        at = source.ctypes.data
        if any(read.block == "host" for read in reads):
            self.elsewhere += not any(begin <= at < begin + n_bytes for begin, n_bytes in self.locked.items())
        super().copy_in(stream, target, offset, source, reads, writes)


def no_read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
    raise AssertionError("the expert was in memory")


@pytest.mark.parametrize("vram", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("layout", ["stacked", "shards"])
@pytest.mark.parametrize("seed", range(3))
def test_copies_start_from_the_store(
    tmp_path: Path, vram: float, layout: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_slots(classes: Sequence[tuple[int, int]]) -> SlotArena:
        raise AssertionError("slots in host memory")

    monkeypatch.setattr(host_slots, "SlotArena", no_slots)
    store = FakeStore(tmp_path / "experts", layout=layout)
    calls, files, notes = Watched(seed), MemoryFile(store.path), []
    with device_controller(
        store, calls, vram, ram=0.0, read=no_read, in_ram=files, notify=notes.append
    ) as controller:
        assert isinstance(controller.queue, CopyQueue)
        host = controller.queue.host
        assert (host.n_bytes, host.holds_all, host.store.pinned) == (0, True, "yes")
        assert calls.locked[files.region.ctypes.data] == files.region.nbytes
        run_calls(controller, store, seed=seed, sizes=SIZES)
        assert calls.counts["copies"] > 0
        assert calls.elsewhere == 0
    assert not calls.locked
    assert not notes


@pytest.mark.parametrize("seed", range(4))
def test_forecasts_from_the_store(tmp_path: Path, seed: int) -> None:
    store = FakeStore(tmp_path / "experts")
    with device_controller(
        store, EmulatedCalls(seed), 0.3, predictor=Guess(seed), read=no_read, prefetch_slots=4,
        in_ram=MemoryFile(store.path),
    ) as controller:  # fmt: skip
        run_calls(controller, store, seed=seed, sizes=[4, *[1] * 12, 9, 1])
        assert controller.queue.stats.prefetch_bytes > 0


def test_misses_computed_in_the_store(tmp_path: Path) -> None:
    store, calls = FakeStore(tmp_path / "experts"), EmulatedCalls(1)
    rule = MissRule(1.0, 1.0, 0.2)
    with device_controller(
        store, calls, 0.3, miss=rule, read=no_read, in_ram=MemoryFile(store.path)
    ) as controller:
        run_calls(controller, store, seed=1, sizes=SIZES)
    assert calls.counts["launch upload"] > 0


def test_an_expert_looked_for_in_the_wrong_place_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker knows what lies where in the store."""
    store = FakeStore(tmp_path / "experts")
    begin = HostTier._begin
    with device_controller(store, EmulatedCalls(1), 0.3, read=no_read, in_ram=MemoryFile(store.path)) as controller:
        monkeypatch.setattr(HostTier, "_begin", lambda tier, slot, place: begin(tier, slot, place) + 64)
        with pytest.raises(RaceError, match="a copy wants"):
            run_calls(controller, store, seed=1, sizes=[1])


@pytest.mark.parametrize(
    ("pinned_bytes", "limit_bytes", "why"),
    [(256 << 10, 1 << 40, "is refused (ulimit -l)"), (None, 300 << 10, "would leave the system too little")],
)
def test_a_store_that_cannot_be_locked(tmp_path: Path, pinned_bytes: int | None, limit_bytes: int, why: str) -> None:
    """The file has 578 KiB; slots for a part of its experts can be locked."""
    store = FakeStore(tmp_path / "experts")
    calls, notes = Watched(2, pinned_bytes=pinned_bytes), []
    with device_controller(
        store, calls, 0.2, ram=0.1, lock_limit_bytes=limit_bytes, notify=notes.append, in_ram=MemoryFile(store.path)
    ) as controller:
        assert isinstance(controller.queue, CopyQueue)
        host = controller.queue.host
        assert host.n_bytes > 0
        assert not host.holds_all
        assert host.store.pinned == "yes"
        run_calls(controller, store, seed=2, sizes=SIZES)
    assert not calls.locked
    assert notes == [
        f"page-locking the 1MiB of the model in memory {why}: experts are copied through 1MiB of slots beside it, which"
        " is slower"
    ]


def test_what_locking_may_take(tmp_path: Path) -> None:
    """All pages of the region, those too that no run asks for, under the ceiling and a share of what is free."""
    path = tmp_path / "file"
    path.write_bytes(bytes(100 * MIB))
    nothing_made = MemoryFile(path, missing=100 * MIB, unwanted=30 * MIB)
    process, work = 200 * MIB, 10 * MIB
    assert lock_limit(nothing_made, process, work, 1000 * MIB, 310 * MIB) == 100 * MIB
    assert lock_limit(nothing_made, process, work, 1000 * MIB, 309 * MIB) < 100 * MIB
    assert lock_limit(nothing_made, process, work, 1000 * MIB, 5000 * MIB) == 850 * MIB
    assert lock_limit(nothing_made, process, work, 0, 5000 * MIB) == 0
    wanted_made = MemoryFile(path, missing=30 * MIB, unwanted=30 * MIB)
    assert lock_limit(wanted_made, process + 70 * MIB, work, 1000 * MIB, 310 * MIB) == 100 * MIB
