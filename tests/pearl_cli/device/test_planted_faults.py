"""Each rule of streaming left out once: the race checker says so, in every order of completion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.gpu.emulated_calls import EmulatedCalls, EmulatedEvent, EmulatedStream
from kernels.gpu.race_checker import RaceError
from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.device.host_tier import HostTier
from pearl_cli.residency.load import Load
from tests.fake_experts import FakeStore, run_calls
from tests.pearl_cli.device.streaming import device_controller

SIZES = [1, 1, 6, 1, 1, 9, 1]


class Forgetful(EmulatedCalls):
    """Waits are not asked for where `forgets` says so."""

    def __init__(self, seed: int, forgets: Callable[[EmulatedCalls, EmulatedStream], bool]) -> None:
        self.forgets = forgets
        super().__init__(seed)

    def wait(self, stream: EmulatedStream, event: EmulatedEvent) -> None:
        if not self.forgets(self, stream):
            super().wait(stream, event)


def run(folder: Path, calls: EmulatedCalls, ram: float = 1.0) -> None:
    store = FakeStore(folder / "experts")
    with device_controller(store, calls, vram=0.2, ram=ram) as controller:
        run_calls(controller, store, seed=5, sizes=SIZES)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_forgotten(tmp_path: Path, seed: int) -> None:
    run(tmp_path, Forgetful(seed, lambda calls, stream: False))


@pytest.mark.parametrize("seed", range(3))
def test_missing_wait_before_a_kernel(tmp_path: Path, seed: int) -> None:
    with pytest.raises(RaceError, match="expert_gate_up and a copy"):
        run(tmp_path, Forgetful(seed, lambda calls, stream: stream is calls.compute))


@pytest.mark.parametrize("seed", range(3))
def test_slot_reused_without_an_event(tmp_path: Path, seed: int) -> None:
    with pytest.raises(RaceError, match="a copy and expert_"):
        run(tmp_path, Forgetful(seed, lambda calls, stream: stream is not calls.compute))


@pytest.mark.parametrize("seed", range(3))
def test_table_flips_before_the_last_chunk(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start_chunk, finish = CopyQueue._start_chunk, CopyQueue._finish

    def too_early(queue: CopyQueue, load: Load) -> None:
        if load.waiting == 0b100:
            finish(queue, load)
        start_chunk(queue, load)

    monkeypatch.setattr(CopyQueue, "_start_chunk", too_early)
    monkeypatch.setattr(CopyQueue, "_finish", lambda queue, load: None)
    with pytest.raises(RaceError, match=r"a copy wants \(\d+, \d+, 2\)"):
        run(tmp_path, EmulatedCalls(seed))


@pytest.mark.parametrize("seed", range(3))
def test_host_slot_reused_while_it_is_copied(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostTier, "sent", lambda tier, key, mark: None)
    with pytest.raises(RaceError, match="a write of the host and a copy"):
        run(tmp_path, EmulatedCalls(seed), ram=0.0)
