"""The parts of `--predictor auto` by themselves: what forecasts are worth, the trial by the clock, lent slots, other
caches over the same history, and what is said of it all.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pearl_cli.residency.arena import SlotArena
from pearl_cli.residency.auto.lent_slots import LentSlots, share_of_layers
from pearl_cli.residency.auto.stretch import Counters, DecodeStretch
from pearl_cli.residency.auto.trial import FetchTrial
from pearl_cli.residency.auto.verdict import Verdict
from pearl_cli.residency.auto.worth import Measured, eviction_gain_ms, fetch_gain_ms, pays_to_fetch
from pearl_cli.residency.build import ExpertPlaces, layer_states
from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.slot_plan import plan_slots
from tests.fake_experts import HIDDEN, WIDTH, FakeStore

# 10 experts missed a token, each waited 0.4 ms for; the link is busy half the time and reads an expert in 0.5 ms.
BASE = Measured(token_ms=10.0, stall_ms=4.0, misses=10.0, link_load=0.5, link_ms=0.5)


def test_right_forecasts_that_fit_the_free_link_spare_their_waiting() -> None:
    assert fetch_gain_ms(dataclasses.replace(BASE, right=5.0)) == pytest.approx(2.0)
    assert fetch_gain_ms(dataclasses.replace(BASE, right=5.0, fetch_forecast_ms=0.5)) == pytest.approx(1.5)
    # wrong ones hold the link for a chunk where a demand comes: 4 * 0.5 * 0.5 / 3
    assert fetch_gain_ms(dataclasses.replace(BASE, right=5.0, wrong=4.0)) == pytest.approx(2.0 - 1 / 3)
    # 20 fetches of 0.5 ms do not fit into 5 ms: half of them are read
    half = fetch_gain_ms(dataclasses.replace(BASE, right=5.0, wrong=15.0))
    assert half == pytest.approx(1.0 - 15 * 0.25 / 3)
    # lent slots cost 2 misses more, half of which are spared too
    assert fetch_gain_ms(dataclasses.replace(BASE, right=5.0, lending_misses=2.0)) == pytest.approx(2.0 - 0.4)


def test_a_forecast_made_while_waiting_costs_only_what_it_spares_of_the_waiting() -> None:
    m = dataclasses.replace(BASE, right=5.0, fetch_forecast_ms=1.0, fetch_hidden=1.0)
    assert fetch_gain_ms(m) == pytest.approx(2.0 - 0.5)


def test_it_is_fetched_only_for_a_considerable_stall_and_gain() -> None:
    assert pays_to_fetch(dataclasses.replace(BASE, right=5.0))
    assert not pays_to_fetch(dataclasses.replace(BASE, right=0.2))
    assert not pays_to_fetch(dataclasses.replace(BASE, stall_ms=0.3, right=9.0))
    assert not pays_to_fetch(BASE)


def test_eviction_by_forecast_is_held_against_its_own_time() -> None:
    m = dataclasses.replace(BASE, cheap_misses=2.0, evict_forecast_ms=0.5)
    assert eviction_gain_ms(m, fetching=False) == pytest.approx(0.8 - 0.5)
    assert eviction_gain_ms(dataclasses.replace(m, evict_hidden=0.8), fetching=False) == pytest.approx(0.8 - 0.1)
    assert eviction_gain_ms(dataclasses.replace(m, right=5.0), fetching=True) == pytest.approx(0.4 - 0.5)


def run_trial(with_ms: float, without_ms: float, scatter: float, lending_ms: float = 0.0) -> tuple[bool, int]:
    trial, rng = FetchTrial(lending_ms), np.random.default_rng(0)
    for n_tokens in range(1000):
        outcome = trial.outcome()
        if outcome is not None:
            return outcome, n_tokens
        trial.add((with_ms if trial.on else without_ms) + scatter * rng.standard_normal())
    raise AssertionError("no outcome")


def test_the_trial_ends_early_where_the_clock_is_clear() -> None:
    assert run_trial(7.0, 10.0, 0.5) == (True, 64)
    assert run_trial(10.0, 7.0, 0.5) == (False, 64)


def test_the_trial_goes_on_where_it_is_not_and_has_an_end() -> None:
    _, n_tokens = run_trial(9.9, 10.0, 3.0)
    assert 64 <= n_tokens <= 256


def test_a_saving_that_only_makes_up_for_the_lent_slots_is_none() -> None:
    assert run_trial(9.0, 10.0, 0.1, lending_ms=1.5)[0] is False


def states(tmp_path: Path, budget: int, layers: int = 3) -> tuple[list[LayerState | None], SlotArena]:
    store = FakeStore(tmp_path / "experts", num_layers=layers, layout="shards", dense_layers=(1,))
    places = ExpertPlaces.of(store)
    plan = plan_slots(places.slot_bytes, 8, budget * max(places.slot_bytes))
    return layer_states(places, plan, (HIDDEN, WIDTH), store.routers(2), make_policy("lru")), SlotArena(plan.classes)


def test_layers_lend_in_turn_and_never_more_than_a_quarter(tmp_path: Path) -> None:
    layers, _ = states(tmp_path, 2 + 2 * 5)
    assert [state.own_cache.capacity for state in layers if state is not None] == [5, 5]
    assert share_of_layers(layers, 1) == {0: 1}
    assert share_of_layers(layers, 100) == {0: 1, 2: 1}


def test_lent_slots_are_free_until_they_are_given_back(tmp_path: Path) -> None:
    layers, arena = states(tmp_path, 2 + 2 * 5)
    for state in layers:
        if state is not None:
            for expert in range(5):
                state.cache.admit(expert)
                state.slot_of[expert] = arena.take(state.size_class)
    assert arena.num_free(0) == 2
    lent = LentSlots(layers, arena)
    lent.lend({0: 1, 2: 1}, {})
    assert arena.num_free(0) == 4
    assert [np.count_nonzero(state.cache.resident) for state in layers if state is not None] == [4, 4]
    assert all(((state.slot_of >= 0) == state.cache.resident).all() for state in layers if state is not None)
    lent.give_back()
    assert [state.own_cache.capacity for state in layers if state is not None] == [5, 5]
    assert not lent.any


@pytest.mark.parametrize("policy", ["lru", "lfru", "lfu"])
def test_a_ghost_keeps_what_a_cache_of_its_own_would(policy: str) -> None:
    real, other = LayerCache(0, 16, 6, make_policy("random")), LayerCache(0, 16, 6, make_policy(policy))
    ghost = real.ghost(make_policy(policy))
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = rng.choice(16, 3, replace=False, p=np.arange(1, 17) / 136)
        real.event(ids)
        other.event(ids)
        ghost.keep(ids)
        np.testing.assert_array_equal(ghost.resident, other.resident)
    assert not np.array_equal(real.resident, ghost.resident)


def stretch(needed: int, busy_s: float) -> DecodeStretch:
    found, nothing = DecodeStretch(), Counters(0, 0, 0, 0.0, 0.0, 0, 0.0, 0.0)
    found.add(5.0, nothing, dataclasses.replace(nothing, needed_bytes=needed, read_bytes=100, busy_s=busy_s))
    return found


def test_a_stretch_differs_by_misses_or_by_the_link() -> None:
    assert not stretch(100, 1.0).differs(stretch(140, 0.7), 1.5)
    assert stretch(100, 1.0).differs(stretch(160, 1.0), 1.5)
    assert stretch(100, 1.0).differs(stretch(100, 0.6), 1.5)
    assert stretch(100, 1.0).differs(stretch(0, 1.0), 1.5)


def test_one_line_says_what_was_measured_and_chosen() -> None:
    m = dataclasses.replace(
        BASE, right=6.0, wrong=2.0, fetch_forecast_ms=0.5, cheap_misses=2.0, evict_forecast_ms=1.0, evict_hidden=0.0
    )
    verdict = Verdict(m, "next-gate", True, "horizon-mlp", "lfru", 0.7, 32, tried_ms=(10.0, 8.0))
    assert verdict.line() == (
        "auto: 40% of 10.00 ms a token wait for experts; next-gate (75% right, 60% of misses, 0.50 ms) tried, 8.00 ms "
        "a token against 10.00: fetching ahead; evicting by horizon-mlp saves 0.32 ms and costs 1.00: lfru instead"
    )
    assert verdict.fields()["auto_fetches"] == "next-gate"
    assert verdict.fields()["auto_watch_ms"] == 0.7
    quiet = Verdict(dataclasses.replace(BASE, stall_ms=0.1), "next-gate", False, None, "lfru", 0.1, 32)
    assert quiet.line() == "auto: 1% of 10.00 ms a token wait for experts; too little to fetch for: not fetching"
    stopped = dataclasses.replace(verdict, fetch=False, tried_ms=None, stopped=True)
    assert "fetched more than it saved: not fetching" in stopped.line()
