"""Forecasts: right ones turn misses into hits, wrong ones cost their own bytes and nothing else, results never change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.errors import ReadFailure
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.load import Load
from pearl_cli.residency.transfer import TransferQueue
from tests.fake_experts import HIDDEN, WIDTH, DelayedReads, FakeStore, read_file
from tests.pearl_cli.residency.scripted_forecasts import Patient, random_plan, scripted_run

EXPERT_BYTES = 3 * 4 * HIDDEN * WIDTH


def patient_run(tmp_path: Path, guess: Callable[[int, int], Sequence[int]], plan: np.ndarray) -> ResidencyController:
    FakeStore(tmp_path / "experts", num_layers=plan.shape[1], layout="shards")
    read = Patient(tmp_path / "experts")
    with scripted_run(tmp_path, guess, plan, read) as (controller, _, run):
        read.controller = controller
        run()
        return controller


def test_right_forecasts_leave_only_the_first_layer_to_miss(tmp_path: Path) -> None:
    plan = random_plan(12, 3)
    controller = patient_run(tmp_path, lambda token, layer: plan[token, layer], plan)
    assert controller.demand.misses.tolist() == [2, 0, 0]
    totals = controller.totals
    assert totals.useful_prefetch_bytes == totals.prefetch_bytes > 0
    assert totals.wasted_prefetch_bytes == 0


def test_precision_of_a_stretch_never_exceeds_one(tmp_path: Path) -> None:
    """The last token uses what was read for its first layer in the call before, and reads nothing for a next one."""
    plan = random_plan(12, 3)
    FakeStore(tmp_path / "experts", num_layers=3, layout="shards")
    read = Patient(tmp_path / "experts")
    with scripted_run(tmp_path, lambda token, layer: plan[token, layer], plan, read) as (controller, _, run):
        read.controller = controller
        run()
        last = controller.last_call
    assert last.useful_prefetch_bytes > last.prefetch_bytes
    assert last.prefetch_precision == 1.0


def test_wrong_forecasts_cost_their_bytes_and_no_hits(tmp_path: Path) -> None:
    plan = random_plan(12, 3)

    def wrong(token: int, layer: int) -> list[int]:
        return [e for e in range(8) if e not in plan[token, layer]][:2]

    controller = patient_run(tmp_path, wrong, plan)
    with scripted_run(tmp_path, None, plan) as (baseline, _, run):
        run()
    assert controller.demand.misses.tolist() == baseline.demand.misses.tolist()
    assert controller.demand.hits.tolist() == baseline.demand.hits.tolist()
    totals = controller.totals
    assert totals.useful_prefetch_bytes == 0
    assert totals.prefetch_bytes - 2 * EXPERT_BYTES <= totals.wasted_prefetch_bytes <= totals.prefetch_bytes


@pytest.mark.parametrize("io_threads", [1, 3])
@pytest.mark.parametrize("recall", [0.0, 0.5, 1.0])
def test_results_do_not_depend_on_forecasts_or_delays(tmp_path: Path, io_threads: int, recall: float) -> None:
    plan = random_plan(30, 3, seed=4)
    rng = np.random.default_rng(5)

    def guess(token: int, layer: int) -> list[int]:
        return [int(e) if rng.random() < recall else int(rng.integers(8)) for e in plan[token, layer]]

    FakeStore(tmp_path / "experts", num_layers=3, layout="shards")
    delayed = DelayedReads(read_file(tmp_path / "experts"), seed=6, longest_s=0.001)
    with scripted_run(tmp_path, guess, plan, delayed, io_threads) as (controller, _, run):
        run()
        kept = [state.cache.resident.copy() for state in controller.layers if state is not None]
        for state in controller.layers:
            assert state is not None
            here = np.flatnonzero(state.slot_of >= 0)
            guests = [e for e in here if not state.cache.resident[e]]
            assert np.count_nonzero(state.cache.resident) <= state.cache.capacity
            assert all((state.layer, e) in controller._prefetcher._guests for e in guests)  # type: ignore[union-attr]
    with scripted_run(tmp_path, None, plan) as (baseline, _, run):
        run()
        for mine, state in zip(kept, baseline.layers, strict=True):
            assert state is not None
            np.testing.assert_array_equal(mine, state.cache.resident)


def test_a_forecast_that_cannot_be_read_is_not_an_error_until_it_is_needed(tmp_path: Path) -> None:
    plan = random_plan(6, 2, seed=7)
    FakeStore(tmp_path / "experts", num_layers=2, layout="shards")
    plain, broken = read_file(tmp_path / "experts"), {"offset": -1}

    def read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        if offset == broken["offset"]:
            raise OSError("broken sector")
        plain(file_index, offset, out, needed_bytes)

    unused = next(e for e in range(8) if e not in plan[:, 1])
    with scripted_run(tmp_path, lambda token, layer: [unused] if layer == 1 else [], plan, read) as (controller, store,
    run):
        broken["offset"] = store.chunk(1, unused, 0).offset
        run()
    with scripted_run(tmp_path, None, plan, read) as (controller, store, run):
        broken["offset"] = store.chunk(1, int(plan[2, 1, 0]), 0).offset
        with pytest.raises(ReadFailure, match="broken sector"):
            run()
        controller.end()


def test_a_demand_takes_slots_back_from_forecasts(tmp_path: Path) -> None:
    """With two staging slots full of guests a prompt still finds room."""
    plan = random_plan(4, 3, seed=8)
    with scripted_run(tmp_path, lambda token, layer: [5, 6, 7], plan, slots=3 + 2) as (controller, store, run):
        run()
        backend = ReferenceBackend()
        rng = np.random.default_rng(9)
        controller.begin(np.zeros(20, np.int64), 0, "prefill")
        for layer in range(3):
            x = rng.standard_normal((20, HIDDEN)).astype(np.float32)
            a = backend.activations(x)
            routing = controller.select(layer, x, a, rng.standard_normal((20, 8)).astype(np.float32))
            np.testing.assert_array_equal(controller.compute(layer, a, routing), store.expected(layer, x, routing))
        controller.end()


def test_once_switched_off_nobody_is_asked(tmp_path: Path) -> None:
    plan, asked = random_plan(6, 3, seed=3), []

    def guess(token: int, layer: int) -> list[int]:
        asked.append((token, layer))
        return [0, 1]

    with scripted_run(tmp_path, guess, plan) as (controller, _, run):
        assert controller._prefetcher is not None
        controller._prefetcher.governor.enabled = False
        run()
    assert asked == []


def test_a_predictor_that_has_learned_fetches_again(tmp_path: Path) -> None:
    """Useless until it is switched off; after the rest it is right."""
    plan, asked = random_plan(600, 1, seed=13), []

    def guess(token: int, layer: int) -> list[int]:
        asked.append(token)
        has_rested = token > len(asked)
        return list(plan[token, layer]) if has_rested else [e for e in range(8) if e not in plan[token, layer]][:3]

    FakeStore(tmp_path / "experts", num_layers=1, layout="shards")
    read = Patient(tmp_path / "experts")
    with scripted_run(tmp_path, guess, plan, read, slots=5) as (controller, _, run):
        read.controller = controller
        run()
        last = controller.last_call
    off = next(token for token in range(1, 600) if token not in asked)
    assert asked == [*range(1, off), *range(off + 256, 600)]
    assert last.useful_prefetch_bytes > 0
    assert last.misses == 0


def test_a_chunk_in_flight_when_its_demand_comes_counts_once(tmp_path: Path) -> None:
    """Forecasts of 3 chunks; the demand comes while the first is being read: it is early, the other two are missed."""
    reading, go_on = threading.Event(), threading.Event()
    store = FakeStore(tmp_path / "experts", num_layers=1, layout="shards")

    def read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        reading.set()
        assert go_on.wait(10)
        read_file(store.path)(file_index, offset, out, needed_bytes)

    places = ExpertPlaces.of(store)
    queue = TransferQueue(read, 1, merge_bytes=1)
    try:
        view = memoryview(bytearray(max(places.slot_bytes)))
        load = Load(0, 3, 0, view, places.places[0][3], demanded=False)
        queue.prefetch([load])
        assert reading.wait(10)
        queue.promote([load])
        early = load.early_bytes
        go_on.set()
        arrived = 0
        while arrived < 3:
            arrived += len(queue.take(block=True))
    finally:
        go_on.set()
        queue.close()
    assert early == load.early_bytes == EXPERT_BYTES // 3
    assert queue.stats.prefetch_bytes == early
    assert queue.stats.demand_bytes == EXPERT_BYTES - early


@pytest.mark.parametrize("is_right", [True, False])
def test_the_verdict_under_random_delays_is_on_precision(tmp_path: Path, is_right: bool) -> None:
    """Whatever the reads take: fetching that is never right ends, fetching that always is goes on."""
    plan = random_plan(130, 3, seed=11)

    def guess(token: int, layer: int) -> list[int]:
        if is_right:
            return list(map(int, plan[token, layer]))
        return [expert for expert in range(8) if expert not in plan[token, layer]][:3]

    FakeStore(tmp_path / "experts", num_layers=3, layout="shards")
    read = Patient(tmp_path / "experts")
    read._read = DelayedReads(read_file(tmp_path / "experts"), seed=12, longest_s=0.0005)
    with scripted_run(tmp_path, guess, plan, read, io_threads=2) as (controller, _, run):
        read.controller = controller
        run()
        assert controller._prefetcher is not None
        governor = controller._prefetcher.governor
        totals = controller.totals
    assert governor.enabled == is_right
    assert (totals.useful_prefetch_bytes > totals.wasted_prefetch_bytes) == is_right
