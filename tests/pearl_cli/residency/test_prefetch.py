"""Forecasts: right ones turn misses into hits, wrong ones cost their own bytes and nothing else, results never change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.errors import ReadFailure
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast
from pearl_cli.residency.build import ExpertPlaces, build_controller
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.load import Load
from pearl_cli.residency.prefetch_governor import PrefetchGovernor
from pearl_cli.residency.slot_plan import plan_slots
from pearl_cli.residency.stats import TransferStats
from pearl_cli.residency.transfer import TransferQueue
from pearl_cli.routing.exact import ExactRouting
from tests.fake_experts import HIDDEN, WIDTH, DelayedReads, FakeStore, read_file

K = 2
EXPERT_BYTES = 3 * 4 * HIDDEN * WIDTH


class Scripted:
    """Forecasts what a function of (token, layer) says, for the next layer; routing is scripted by the same table."""

    name = "scripted"

    def __init__(self, plan: np.ndarray, guess: Callable[[int, int], Sequence[int]]) -> None:
        self.plan = plan  # [tokens, layers, K]
        self.guess = guess
        self.token = -1

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        self.token += 1

    def forecast(self, layer: int, residual: object, a: object, routing: Routing) -> list[Forecast]:
        token, target = (self.token, layer + 1) if layer + 1 < self.plan.shape[1] else (self.token + 1, 0)
        if token >= len(self.plan):
            return []
        scores = np.zeros(8, np.float32)
        scores[list(self.guess(token, target))] = 0.9
        return [Forecast(target, scores)]

    def next_use(self, layer: int) -> None:
        return None


@contextmanager
def scripted_run(
    tmp_path: Path,
    guess: Callable[[int, int], Sequence[int]] | None,
    plan: np.ndarray,
    read: Callable[[int, int, memoryview, int], None] | None = None,
    io_threads: int = 1,
    slots: int = 3 * 2 + 6,
) -> Iterator[tuple[ResidencyController, FakeStore, Callable[[], None]]]:
    store = FakeStore(tmp_path / "experts", num_layers=plan.shape[1], layout="shards")
    places, backend = ExpertPlaces.of(store), ReferenceBackend()
    slot_plan = plan_slots(places.slot_bytes, 8, slots * max(places.slot_bytes), prefetch_slots=4)
    predictor = Scripted(plan, guess) if guess is not None else None
    controller = build_controller(
        places, slot_plan, (HIDDEN, WIDTH), store.routers(K), backend, make_policy("lru"), ExactRouting(backend),
        read or read_file(store.path), io_threads, predictor=predictor, prefetch_depth=3,
    )  # fmt: skip

    def run() -> None:
        rng = np.random.default_rng(0)
        for token in range(len(plan)):
            controller.begin(np.zeros(1, np.int64), token, "decode")
            for layer in range(plan.shape[1]):
                logits = np.full((1, 8), -9.0, np.float32)
                logits[0, plan[token, layer]] = [2.0, 1.0]
                x = rng.standard_normal((1, HIDDEN)).astype(np.float32)
                a = backend.activations(x)
                routing = controller.select(layer, x, a, logits)
                assert routing.topk_ids[0].tolist() == plan[token, layer].tolist()
                if settle := getattr(read, "settle", None):
                    settle()
                np.testing.assert_array_equal(controller.compute(layer, a, routing), store.expected(layer, x, routing))
                if settle is not None:  # where the layer missed something, forecasts were asked for meanwhile
                    settle()
            controller.end()

    try:
        yield controller, store, run
    finally:
        controller.close()


def random_plan(tokens: int, layers: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([[rng.choice(8, K, replace=False) for _ in range(layers)] for _ in range(tokens)], np.int64)


class Patient:
    """Reads, and a way to wait until every queued read has landed: forecasts then always arrive in time."""

    def __init__(self, path: Path) -> None:
        self._read = read_file(path)
        self.controller: ResidencyController | None = None

    def __call__(self, *args: object) -> None:
        self._read(*args)  # type: ignore[arg-type]

    def settle(self) -> None:
        assert self.controller is not None
        while not self.controller.queue.idle():
            time.sleep(0)


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


@pytest.mark.parametrize(("load", "bound"), [(0.0, 0.05), (0.25, 0.1), (0.5, 0.25), (0.64, 0.372), (1.0, 1.0)])
def test_threshold_is_where_saved_stall_meets_delay(load: float, bound: float) -> None:
    governor = PrefetchGovernor()
    governor.link_load = load
    assert governor.threshold == pytest.approx(bound, rel=1e-2)


def test_the_load_is_the_share_of_time_that_demands_keep_the_link() -> None:
    clock = {"now": 0.0}
    governor = PrefetchGovernor(now=lambda: clock["now"])
    stats = TransferStats()
    for _ in range(200):
        governor.observe_link(stats)
        clock["now"] += 1.0
        stats.demand_bytes += 100
        stats.prefetch_bytes += 100
        stats.busy_s += 0.8  # half of it for forecasts
    assert governor.link_load == pytest.approx(0.4, rel=1e-3)


def test_useless_forecasts_are_switched_off_and_said() -> None:
    governor = PrefetchGovernor(now=lambda: 0.0)
    governor.link_load = 0.5
    for i in range(200):
        governor.settle(useful=i % 5 == 0)
    verdict = governor.observe_link(TransferStats())
    assert verdict is not None
    assert "switched off: 5.0 experts fetched for each one used, link 50% busy" in verdict
    assert not governor.enabled


def test_useful_forecasts_stay_on() -> None:
    governor = PrefetchGovernor(now=lambda: 0.0)
    governor.link_load = 0.5
    for i in range(400):
        governor.settle(useful=i % 3 == 0)
        assert governor.observe_link(TransferStats()) is None
    assert governor.enabled


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
