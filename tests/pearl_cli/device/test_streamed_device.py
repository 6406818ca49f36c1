"""Experts streamed to a device give the bits of the all-resident computation, whatever completes first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kernels.backend import Activations, Array
from kernels.gpu.emulated_calls import EmulatedCalls
from models.errors import ReadFailure
from models.expert_provider import Routing
from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.predict.base import Forecast
from pearl_cli.residency.ablations import CopyPieces
from tests.fake_experts import DelayedReads, FakeStore, read_file, run_calls
from tests.pearl_cli.device.streaming import device_controller

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


class Guess:
    """Expects random experts of the next layers, right as often as chance has it."""

    name = "guess"

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        return [Forecast((layer + step) % 3, self.rng.random(8).astype(np.float32)) for step in (1, 2)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ram", [0.0, 0.4, 1.0])
def test_forecasts_found_right_found_wrong_and_promoted(tmp_path: Path, seed: int, ram: float) -> None:
    store = FakeStore(tmp_path / "experts")
    delayed = DelayedReads(read_file(store.path), seed=seed, longest_s=0.0005)
    with device_controller(
        store, EmulatedCalls(seed), 0.3, ram, predictor=Guess(seed), read=delayed, io_threads=2, prefetch_slots=4
    ) as controller:
        run_calls(controller, store, seed=seed, sizes=[4, *[1] * 12, 9, *[1] * 6])
        stats = controller.queue.stats
        # which forecasts are read in time is the threads' to say where host memory holds few, and which wrong ones
        # were begun
        assert stats.prefetch_bytes + stats.promoted + stats.dropped > 0
        assert ram == 0.0 or stats.prefetch_bytes > 0
        assert controller.demand.useful_prefetch_bytes + stats.promoted > 0
        assert controller.demand.wasted_prefetch_bytes + stats.dropped > 0


@pytest.mark.parametrize("piece", ["reorder", "preempt", "chunk"])
def test_pieces_switched_off_change_no_bit(tmp_path: Path, piece: str) -> None:
    store = FakeStore(tmp_path / "experts")
    with device_controller(
        store, EmulatedCalls(5), 0.3, predictor=Guess(1), prefetch_slots=4, pieces=CopyPieces.without((piece,))
    ) as controller:
        run_calls(controller, store, seed=1, sizes=[4, *[1] * 8, 9, 1])


def test_a_demand_waits_for_two_forecast_chunks_at_most(tmp_path: Path) -> None:
    """Of many forecasts only so many are under way; without overtaking all of them are."""
    store, under_way = FakeStore(tmp_path / "experts"), {}
    for off in ((), ("preempt",)):
        calls = EmulatedCalls(1)
        calls.done = lambda event: False  # a slow link
        with device_controller(store, calls, 0.9, pieces=CopyPieces.without(off), prefetch_slots=8) as controller:
            assert isinstance(controller.queue, CopyQueue)
            controller.queue.host.fill([(0, expert) for expert in range(8)])
            state = controller.layers[0]
            before = calls.counts["copies"]
            slots = [controller.arena.take(0) for _ in range(6)]
            controller.queue.prefetch([state.new_load(e, slots[e], controller.arena, False) for e in range(6)])
            under_way[off] = calls.counts["copies"] - before
    assert under_way == {(): 2, ("preempt",): 6 * 4}  # three matrices and an entry of the slot table each


def test_a_failed_read_is_told_once_and_the_next_call_is_clean(tmp_path: Path) -> None:
    store = FakeStore(tmp_path / "experts")
    plain, fails = read_file(store.path), [False]

    def read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        if fails[0]:
            raise OSError("the disk is gone")
        plain(file_index, offset, out, needed_bytes)

    with device_controller(store, EmulatedCalls(4), 0.1, 0.1, read=read, io_threads=2) as controller:
        run_calls(controller, store, seed=1, sizes=[3, 1, 1])
        for seed in range(3):
            fails[0] = True
            with pytest.raises(ReadFailure, match="the disk is gone"):
                run_calls(controller, store, seed=seed, sizes=[20])
            controller.end()
            fails[0] = False
            run_calls(controller, store, seed=seed, sizes=[3, 1, 12, 1])


def test_decoding_allocates_nothing_and_waits_for_nothing(tmp_path: Path) -> None:
    """With all experts in host memory a token costs copies and launches only, a fixed number of launches a layer."""
    store = FakeStore(tmp_path / "experts")
    calls = EmulatedCalls(6)
    with device_controller(store, calls, vram=0.3) as controller:
        assert isinstance(controller.queue, CopyQueue)
        controller.queue.host.fill([(layer, e) for layer in store.moe_layers() for e in range(store.num_experts)])
        run_calls(controller, store, seed=1, sizes=[1, 1])
        before = calls.counts.copy()
        run_calls(controller, store, seed=2, sizes=[1] * 8)
        counts = calls.counts - before
    for name in ("device allocations", "pins", "events", "synchronizations"):
        assert counts[name] == 0, name
    assert counts["launch expert_combine"] == 8 * 3
    assert counts["launch expert_gate_up"] == counts["launch expert_down"] <= 2 * 8 * 3
