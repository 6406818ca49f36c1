"""Experts streamed through any budget, policy, delay and thread count give the bits of the all-resident computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kernels.backend import Activations
from kernels.reference.backend import ReferenceBackend
from models.errors import ReadFailure
from models.expert_provider import Routing
from pearl_cli.residency.build import ExpertPlaces, build_controller
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.eviction import POLICY_NAMES, make_policy
from pearl_cli.residency.slot_plan import floor_bytes, full_bytes, plan_slots
from pearl_cli.routing.exact import ExactRouting
from tests.fake_experts import HIDDEN, WIDTH, DelayedReads, FakeStore, read_file, run_calls

K = 2


class ScriptedNextUse:
    """Distances that are a function of the routing alone."""

    name = "scripted"

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def expected(self, layer: int, x: np.ndarray, topk_ids: np.ndarray) -> np.ndarray:
        return np.array([np.random.default_rng(row).permutation(8) + 1.0 for row in topk_ids])

    def fresh(self) -> ScriptedNextUse:
        return self


@contextmanager
def controller_for(
    store: FakeStore,
    share: float,
    policy: str = "lru",
    read: Callable[[int, int, memoryview, int], None] | None = None,
    io_threads: int = 1,
) -> Iterator[ResidencyController]:
    """share: 0 is the floor, 1 everything."""
    backend = ReferenceBackend()
    places = ExpertPlaces.of(store)
    low, high = floor_bytes(places.slot_bytes), full_bytes(places.slot_bytes, store.num_experts)
    plan = plan_slots(places.slot_bytes, store.num_experts, round(low + share * (high - low)))
    popularity = np.arange(store.num_layers * store.num_experts).reshape(store.num_layers, -1)
    controller = build_controller(
        places, plan, (HIDDEN, WIDTH), store.routers(K), backend, make_policy(policy, popularity),
        ExactRouting(backend), read or read_file(store.path), io_threads,
        next_use=ScriptedNextUse() if policy == "pearl" else None,
    )  # fmt: skip
    try:
        yield controller
    finally:
        controller.close()


def run_checked(controller: ResidencyController, store: FakeStore, seed: int, sizes: list[int]) -> None:
    """`run_calls`, with the slots looked at after each call."""
    run_calls(controller, store, seed, sizes, check_slots)


def check_slots(controller: ResidencyController) -> None:
    """After a call every slot is free or holds exactly one expert of a budget, and budgets are kept."""
    used = []
    for state in controller.layers:
        if state is None:
            continue
        here = state.slot_of[state.slot_of >= 0].tolist()
        used += here
        assert len(here) == np.count_nonzero(state.cache.resident) <= state.cache.capacity
        assert not state.loads
        np.testing.assert_array_equal(state.slot_of >= 0, state.cache.resident)
        np.testing.assert_array_equal(state.table.gate != 0, state.cache.resident)
    assert len(used) == len(set(used))
    n_free = sum(controller.arena.num_free(c) for c in range(len(set(controller.arena.class_of))))
    assert n_free + len(used) == controller.arena.num_slots


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.95, 1.0])
@pytest.mark.parametrize("layout", ["stacked", "shards"])
def test_every_budget_equals_resident(tmp_path: Path, share: float, layout: str) -> None:
    store = FakeStore(tmp_path / "experts", layout=layout, num_experts=8)
    with controller_for(store, share) as controller:
        run_checked(controller, store, seed=1, sizes=[5, 1, 1, 1, 40, 1, 1, 1, 2, 1])


def test_a_layer_that_holds_everything_is_only_noted(tmp_path: Path) -> None:
    """Results, hits and history are those of the long way; whatever empties a slot ends it."""
    store = FakeStore(tmp_path / "experts")
    with controller_for(store, 1.0) as controller, controller_for(store, 1.0) as careful:
        careful._slots.nothing_leaves = lambda state: False
        for each in (controller, careful):
            each.load_experts(ExpertPlaces.of(store).in_file_order())
        states = [state for state in controller.layers if state is not None]
        assert not any(state.whole for state in states)
        for seed in range(4):
            run_checked(controller, store, seed, [1, 3, 1])
            assert all(state.whole for state in states)
            run_checked(careful, store, seed, [1, 3, 1])
            assert not any(state.whole for state in careful.layers)
            for name in ("n_tokens", "hits", "misses"):
                assert getattr(controller.totals, name) == getattr(careful.totals, name)
        for state, other in zip(states, careful.layers, strict=True):
            for name in ("last_use", "use_count", "touched_cycle", "clock"):
                np.testing.assert_array_equal(
                    getattr(state.cache.history, name), getattr(other.cache.history, name)
                )
        controller.drop_residents()
        assert not any(state.whole for state in states)
        run_checked(controller, store, 9, [1, 1])


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("io_threads", [1, 2, 5])
def test_every_policy_under_delays(tmp_path: Path, policy: str, io_threads: int) -> None:
    store = FakeStore(tmp_path / "experts", layout="shards" if io_threads == 2 else "stacked")
    delayed = DelayedReads(read_file(store.path), seed=io_threads)
    with controller_for(store, 0.3, policy, delayed, io_threads) as controller:
        run_checked(controller, store, seed=2, sizes=[9, 1, 1, 1, 1, 30, 1, 1])


def test_residents_do_not_depend_on_timing(tmp_path: Path) -> None:
    """What the budget keeps is a function of the routing alone."""
    store = FakeStore(tmp_path / "experts")
    kept = []
    for seed, io_threads in [(0, 1), (1, 4), (2, 3)]:
        delayed = DelayedReads(read_file(store.path), seed)
        with controller_for(store, 0.4, "lfru", delayed, io_threads) as controller:
            run_checked(controller, store, seed=3, sizes=[20, 1, 1, 1, 1, 1])
            kept.append([state.cache.resident.copy() for state in controller.layers if state is not None])
    for other in kept[1:]:
        np.testing.assert_array_equal(kept[0], other)


def test_layer_without_experts(tmp_path: Path) -> None:
    store = FakeStore(tmp_path / "experts", num_layers=4, dense_layers=(0, 2))
    with controller_for(store, 0.2) as controller:
        run_checked(controller, store, seed=4, sizes=[3, 1, 1])
        assert controller.layers[0] is None
        with pytest.raises(ValueError, match="layer 0 has no experts"):
            controller.select(0, None, Activations(None), None)


def test_counts(tmp_path: Path) -> None:
    """First use of each expert is a miss, the second a hit; bytes are those of the matrices, not of the pages."""
    store = FakeStore(tmp_path / "experts", num_layers=1)
    expert_bytes = 3 * 4 * HIDDEN * WIDTH
    with controller_for(store, 0.8) as controller:
        x = np.ones((1, HIDDEN), np.float32)
        seen = []
        for ids in ([1, 2], [2, 3], [1, 2]):
            controller.begin(np.zeros(1, np.int64), 0, "decode")
            controller.compute(0, Activations(x), Routing(np.array([ids], np.int32), np.ones((1, 2), np.float32)))
            controller.end()
            seen.append((controller.last_call.hits, controller.last_call.misses, controller.last_call.miss_bytes))
    assert seen == [(0, 2, 2 * expert_bytes), (1, 1, expert_bytes), (2, 0, 0)]
    assert controller.queue.stats.demand_bytes == 3 * expert_bytes


def test_failed_read_is_reported_and_mended(tmp_path: Path) -> None:
    store = FakeStore(tmp_path / "experts")
    plain = read_file(store.path)
    broken = {"now": False}

    def read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        if broken["now"]:
            raise ReadFailure(f"experts: reading at byte {offset} failed: Input/output error")
        plain(file_index, offset, out, needed_bytes)

    with controller_for(store, 0.3, read=read, io_threads=2) as controller:
        run_checked(controller, store, seed=5, sizes=[10, 1])
        broken["now"] = True
        with pytest.raises(ReadFailure, match="Input/output error"):
            run_checked(controller, store, seed=6, sizes=[1, 1, 1])
        controller.begin(np.zeros(0, np.int64), 0, "decode")  # waits for reads in flight
        controller.end()
        check_slots(controller)
        broken["now"] = False
        run_checked(controller, store, seed=7, sizes=[1, 1, 12, 1])


def test_interrupt_while_waiting_leaves_a_usable_controller(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a layer: the next call is right again."""
    store = FakeStore(tmp_path / "experts")

    class Interrupting(ReferenceBackend):
        calls = 0

        def expert_down(self, *args: object) -> None:
            Interrupting.calls += 1
            if Interrupting.calls == 3:
                raise KeyboardInterrupt
            super().expert_down(*args)  # type: ignore[arg-type]

    delayed = DelayedReads(read_file(store.path), seed=8)
    with controller_for(store, 0.2, read=delayed, io_threads=2) as controller:
        controller._backend = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            run_checked(controller, store, seed=8, sizes=[20])
        run_checked(controller, store, seed=9, sizes=[1, 1, 20, 1])


def test_no_read_touches_a_slot_in_use(tmp_path: Path) -> None:
    """Reads go only to slots that hold no resident expert, and never two reads to the same bytes at once."""
    store = FakeStore(tmp_path / "experts")
    plain = DelayedReads(read_file(store.path), seed=10)
    problems: list[str] = []
    in_flight: set[int] = set()
    holder: list[ResidencyController] = []

    def read(file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        address = np.frombuffer(out, np.uint8).ctypes.data
        arena = holder[0].arena
        slot = max(s for s, base in enumerate(arena.addresses) if base <= address)
        resident = {int(s) for state in holder[0].layers if state is not None for s in state.slot_of if s >= 0}
        if slot in resident:
            problems.append(f"slot {slot} is resident and written")
        if address in in_flight:
            problems.append(f"two reads at {address:#x}")
        in_flight.add(address)
        plain(file_index, offset, out, needed_bytes)
        in_flight.discard(address)

    with controller_for(store, 0.15, read=read, io_threads=4) as controller:
        holder.append(controller)
        run_checked(controller, store, seed=11, sizes=[16, 1, 1, 30, 1, 1, 1])
    assert not problems


def test_prompt_keeps_what_its_last_tokens_use(tmp_path: Path) -> None:
    """A prompt is replayed token by token: afterwards the layer holds the most recent experts, not the last ones read.
    """
    store = FakeStore(tmp_path / "experts", num_layers=1)
    with controller_for(store, 0.5) as controller:
        state = controller.layers[0]
        assert state is not None
        ids = np.array([[7, 6], [5, 4], [3, 2], [1, 0], [7, 6]], np.int32)
        controller.begin(np.zeros(5, np.int64), 0, "prefill")
        controller.compute(0, Activations(np.ones((5, HIDDEN), np.float32)), Routing(ids, np.ones((5, 2), np.float32)))
        controller.end()
        kept = np.flatnonzero(state.cache.resident).tolist()
        assert len(kept) == state.cache.capacity == 3
        assert kept == [1, 6, 7]


def test_loading_everything_makes_every_demand_a_hit(tmp_path: Path) -> None:
    store = FakeStore(tmp_path / "experts", layout="shards")
    with controller_for(store, 1.0, io_threads=2) as controller:
        told: list[int] = []
        places = ExpertPlaces.of(store)
        controller.load_experts(places.in_file_order(), told.append)
        assert sum(told) == places.expert_bytes_total
        check_slots(controller)
        run_checked(controller, store, seed=12, sizes=[1, 8, 1])
        assert controller.demand.misses.sum() == 0


def test_loading_stops_at_the_budget(tmp_path: Path) -> None:
    store = FakeStore(tmp_path / "experts")
    with controller_for(store, 0.3) as controller:
        controller.load_experts(ExpertPlaces.of(store).in_file_order())
        check_slots(controller)
        run_checked(controller, store, seed=13, sizes=[1, 8, 1])
