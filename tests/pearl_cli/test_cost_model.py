"""The cost model on hand-worked events: what is waited for, what a forecast hides, what a wrong one costs."""

from __future__ import annotations

import numpy as np
import pytest

from pearl_cli.predict.base import Forecast
from pearl_cli.simulate.cost_model import CostModel, Machine
from pearl_cli.trace import DECODE, PREFILL, Event

MACHINE = Machine(bytes_per_s=1000.0, latency_s=0.01, compute_s=0.2)
NOBODY = np.zeros(4, bool)


def event(layer: int, step: int, ids: list[int], phase: int = DECODE) -> Event:
    return Event(phase, layer, np.array(ids), 0, step)


def test_a_miss_costs_one_latency_and_its_bytes() -> None:
    cost = CostModel(MACHINE, [90, 90])
    cost(event(0, 0, [0, 1]), np.array([0, 1]), NOBODY)
    cost(event(1, 0, [2]), np.array([], np.int64), NOBODY)
    assert cost.stall_s == pytest.approx(0.01 + 0.18)
    assert cost.token_s == pytest.approx([0.4 + 0.19])
    figures = cost.figures()
    assert figures["demand_bytes_per_token"] == 180
    assert figures["tokens_per_s"] == pytest.approx(1 / 0.59)


def test_reads_hide_behind_the_experts_that_are_there() -> None:
    """.2 s a layer, of which each of 2 experts takes .06: the other computes until .06, then waits for gate and up of
    the missing one at .01 + .18 * 2/3 = .13, computes them in .04, waits for down at .19 and computes it in .02.
    """
    cost = CostModel(Machine(1000.0, 0.01, 0.2, 0.06), [180])
    cost(event(0, 0, [0, 1]), np.array([1]), NOBODY)
    assert cost.token_s == pytest.approx([0.2 - 0.12 + 0.19 + 0.02])
    assert cost.stall_s == pytest.approx(0.21 - 0.12)


def test_nothing_is_waited_for_where_reads_are_shorter_than_the_rest() -> None:
    cost = CostModel(Machine(1e6, 0.0, 0.2, 0.05), [90])
    cost(event(0, 0, [0, 1, 2]), np.array([2]), NOBODY)
    assert cost.stall_s == pytest.approx(0.0, abs=1e-9)
    assert cost.token_s == pytest.approx([0.2])


def test_forecasts_use_the_link_while_experts_compute() -> None:
    """The gate of layer 0 comes at .08, its two experts compute until .2, and layer 1 comes to its gate at .28."""
    scores = np.array([0, 0, 0, 0.9], np.float32)
    cost = CostModel(
        Machine(1000.0, 0.0, 0.2, 0.06), [190] * 2, lambda e: [Forecast(1, scores)] if e.layer == 0 else [], 2, False
    )
    cost(event(0, 0, [0, 1]), np.array([], np.int64), NOBODY)
    cost(event(1, 0, [3, 1]), np.array([3]), NOBODY)
    assert cost.stall_s == pytest.approx(0.0, abs=1e-9)
    assert cost.useful_bytes == 190


def test_prompt_tokens_are_left_out() -> None:
    cost = CostModel(MACHINE, [90])
    cost(event(0, 0, [0, 1], PREFILL), np.array([0, 1]), NOBODY)
    cost(event(0, 1, [0]), np.array([], np.int64), NOBODY)
    assert (cost.stall_s, cost.demand_bytes, len(cost.token_s)) == (0.0, 0, 1)


@pytest.mark.parametrize(
    ("expert_bytes", "stall_s"),
    [
        (90, 0.0),  # .01 + .09 s of reading hide in .2 s of compute
        (390, 0.2),  # .4 s: half is left when the gate comes
    ],
)
def test_a_right_forecast_hides_in_the_compute_before_the_gate(expert_bytes: int, stall_s: float) -> None:
    scores = np.array([0, 0, 0, 0.9], np.float32)
    cost = CostModel(
        MACHINE, [expert_bytes] * 2, lambda e: [Forecast(1, scores)] if e.layer == 0 else [], depth=2, governed=False
    )
    cost(event(0, 0, [0]), np.array([], np.int64), NOBODY)
    cost(event(1, 0, [3]), np.array([3]), NOBODY)
    assert cost.stall_s == pytest.approx(stall_s)
    assert (cost.prefetch_bytes, cost.useful_bytes, cost.demand_bytes) == (expert_bytes, expert_bytes, 0)


def test_a_wrong_forecast_delays_a_demand_by_a_chunk_at_most() -> None:
    scores = np.array([0, 0, 0.9, 0], np.float32)
    cost = CostModel(MACHINE, [590] * 2, lambda e: [Forecast(1, scores)] if e.layer == 0 else [], 1, governed=False)
    cost(event(0, 0, [0]), np.array([], np.int64), NOBODY)
    cost(event(1, 0, [3]), np.array([3]), NOBODY)
    alone = 0.01 + 0.59
    assert alone < cost.stall_s <= alone + 590 / 3 / 1000
    assert cost.useful_bytes == 0
    assert cost.prefetch_bytes == 590


def test_what_is_resident_is_not_fetched() -> None:
    scores = np.array([0, 0, 0, 0.9], np.float32)
    cost = CostModel(MACHINE, [90], lambda e: [Forecast(0, scores)], depth=1, governed=False)
    here = np.array([False, False, False, True])
    for step in range(3):
        cost(event(0, step, [3]), np.array([], np.int64), here)
    assert cost.prefetch_bytes == 0


def test_the_governor_switches_useless_fetching_off_and_says_so() -> None:
    rng = np.random.default_rng(0)

    def forecaster(e: Event) -> list[Forecast]:
        scores = np.zeros(64, np.float32)
        scores[rng.integers(8, 64, 4)] = 0.9  # never used
        return [Forecast(0, scores)]

    governed, free = (CostModel(MACHINE, [30], forecaster, 4, governed) for governed in (True, False))
    for cost in (governed, free):
        for step in range(400):
            cost(event(0, step, [step % 8]), np.array([step % 8]), np.zeros(64, bool))
    assert "switched off" in governed.switched_off
    assert governed.prefetch_bytes < free.prefetch_bytes
    assert governed.stall_s <= free.stall_s


def test_a_replay_fetches_again_once_the_predictor_is_right() -> None:
    """Wrong for 100 tokens; by the end of the rest it knows the next expert."""
    asked: list[int] = []

    def forecaster(e: Event) -> list[Forecast]:
        asked.append(e.step)
        scores = np.zeros(64, np.float32)
        scores[[(e.step + 1) % 8] if e.step >= 100 else range(8, 24)] = 0.9
        return [Forecast(0, scores)]

    cost = CostModel(MACHINE, [30], forecaster, depth=16)
    for step in range(400):
        cost(event(0, step, [step % 8]), np.array([step % 8]), np.zeros(64, bool))
    off = next(step for step in range(400) if step not in asked)
    assert asked == [*range(off), *range(off + 256, 400)]
    assert cost.switched_off == ""
    assert cost.figures()["prefetch_precision"] == cost.useful_bytes / (cost.useful_bytes + cost.wasted_bytes)
    assert cost.useful_bytes > 0
