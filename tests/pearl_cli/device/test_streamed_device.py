"""Experts streamed to a device give the bits of the all-resident computation, whatever completes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.gpu.emulated_calls import EmulatedCalls
from tests.fake_experts import DelayedReads, FakeStore, read_file
from tests.pearl_cli.device.streaming import device_controller, run_calls

SIZES = [5, 1, 1, 1, 24, 1, 1, 1, 2, 1]


@pytest.mark.parametrize("vram", [0.0, 0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("layout", ["stacked", "shards"])
def test_every_budget_equals_resident(tmp_path: Path, vram: float, layout: str) -> None:
    store = FakeStore(tmp_path / "experts", layout=layout)
    with device_controller(store, EmulatedCalls(seed=1), vram) as controller:
        run_calls(controller, store, seed=1, sizes=SIZES)


@pytest.mark.parametrize("seed", range(6))
def test_every_order_of_completion(tmp_path: Path, seed: int) -> None:
    store = FakeStore(tmp_path / "experts")
    with device_controller(store, EmulatedCalls(seed=seed), vram=0.2) as controller:
        run_calls(controller, store, seed=2, sizes=SIZES)


@pytest.mark.parametrize("ram", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("io_threads", [1, 3])
def test_three_tiers_under_delays(tmp_path: Path, ram: float, io_threads: int) -> None:
    store = FakeStore(tmp_path / "experts")
    delayed = DelayedReads(read_file(store.path), seed=io_threads)
    with device_controller(store, EmulatedCalls(seed=3), 0.2, ram, io_threads=io_threads, read=delayed) as controller:
        run_calls(controller, store, seed=3, sizes=SIZES)
