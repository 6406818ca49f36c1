"""`--miss`: what goes to the CPU is what costs less there, and is part of the same sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.gpu.emulated_calls import EmulatedCalls
from kernels.reference.backend import ReferenceBackend
from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.device.device_side import DeviceSide
from pearl_cli.device.measure_misses import measure_misses
from pearl_cli.device.miss_rule import MissRule
from pearl_cli.device.mixed_controller import MixedController
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.residency.slot_plan import full_bytes, plan_slots
from tests.fake_experts import HIDDEN, WIDTH, FakeStore, run_calls
from tests.pearl_cli.device.streaming import device_controller

SIZES = [5, 1, 1, 1, 24, 1, 1, 1, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("copy_s", "cpu_s", "cpu_token_s", "n_tokens", "chosen"),
    [
        (1.0, 1.0, 0.0, [1, 1, 1, 1], [0, 1]),  # half and half
        (1.0, 9.0, 0.0, [1, 1, 1, 1], []),  # the CPU is too slow for even one
        (9.0, 1.0, 0.0, [1, 1, 1, 1], [0, 1, 2, 3]),
        (3.0, 1.0, 0.0, [1, 1, 1, 1], [0, 1, 2]),
        (2.0, 1.0, 1.0, [9, 1, 4, 1], [1, 3]),  # many tokens are better copied for
        (1.0, 1.0, 0.0, [], []),
    ],
)
def test_the_longer_of_both_is_as_short_as_can_be(
    copy_s: float, cpu_s: float, cpu_token_s: float, n_tokens: list[int], chosen: list[int]
) -> None:
    rule = MissRule(copy_s, cpu_s, cpu_token_s)
    assert rule.on_cpu(n_tokens) == chosen
    assert sorted(MissRule(copy_s, cpu_s, cpu_token_s, always=True).on_cpu(n_tokens)) == list(range(len(n_tokens)))


@pytest.mark.parametrize("vram", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("rule", [MissRule(1.0, 1.0, 0.2), MissRule(1.0, 50.0, 0.0), MissRule(1.0, 1.0, 0.0, True)])
@pytest.mark.parametrize("seed", range(2))
def test_the_sum_is_the_same(tmp_path: Path, vram: float, rule: MissRule, seed: int) -> None:
    """Both sides compute by the reference here, so the bits are those of the resident run."""
    store = FakeStore(tmp_path / "experts")
    calls = EmulatedCalls(seed)
    with device_controller(store, calls, vram, miss=rule) as controller:
        assert isinstance(controller, MixedController)
        assert isinstance(controller.queue, CopyQueue)
        controller.queue.host.fill([(layer, e) for layer in store.moe_layers() for e in range(store.num_experts)])
        run_calls(controller, store, seed=seed, sizes=SIZES)
    assert (calls.counts["launch upload"] > 0) is (rule.cpu_s < 50)


def test_what_the_cpu_computed_is_copied_behind(tmp_path: Path) -> None:
    """The same token again and again: all its experts are on the device in the end."""
    store = FakeStore(tmp_path / "experts", num_layers=1)
    calls = EmulatedCalls(1)
    with device_controller(store, calls, 0.5, miss=MissRule(1.0, 1.0, 0.0, True)) as controller:
        assert isinstance(controller.queue, CopyQueue)
        controller.queue.host.fill([(0, expert) for expert in range(store.num_experts)])
        for _ in range(12):
            run_calls(controller, store, seed=3, sizes=[1])
        uploads = calls.counts["launch upload"]
        run_calls(controller, store, seed=3, sizes=[1])
        assert calls.counts["launch upload"] == uploads
        assert controller.landed(0).sum() == 2


def test_both_costs_are_measured(tmp_path: Path) -> None:
    store = FakeStore(tmp_path / "experts")
    places = ExpertPlaces.of(store)
    plan = plan_slots(places.slot_bytes, 8, full_bytes(places.slot_bytes, 8))
    calls = EmulatedCalls(1)
    side = DeviceSide.open(calls, plan, store.num_layers, 8)
    rule = measure_misses(side, places, (HIDDEN, WIDTH), ReferenceBackend(), always=False)
    assert rule.copy_s > 0
    assert rule.cpu_s > 0
    assert rule.cpu_token_s >= 0
    assert calls.counts["copies"] == 1 + 3 * 3  # the empty slot table, and three experts of three matrices
