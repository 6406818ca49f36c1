"""`--predictor auto`: it fetches where that pays by the clock, leaves everything alone where it does not, says so once,
and never changes a result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from kernels.reference.backend import ReferenceBackend
from models.expert_provider import Routing
from pearl_cli.predict.base import Forecast
from pearl_cli.residency.auto.auto_forecasts import AutoForecasts, Stage
from pearl_cli.residency.auto.plan import AutoPlan
from pearl_cli.residency.build import ExpertPlaces, build_controller
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.gate_call import GateCall
from pearl_cli.residency.slot_plan import plan_slots
from pearl_cli.routing.exact import ExactRouting
from tests.fake_experts import HIDDEN, WIDTH, FakeStore, read_file

K, LAYERS, EXPERTS = 2, 3, 8


class Guesses:
    """Forecasts for the next layer of the same token."""

    name = "guesses"

    def __init__(self, guess: Callable[[int, int], Sequence[int]]) -> None:
        self.guess = guess
        self.token = -1
        self.asked = 0

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        self.token = start

    def forecast(self, layer: int, residual: object, a: object, routing: Routing) -> list[Forecast]:
        self.asked += 1
        if layer + 1 == LAYERS:
            return []
        scores = np.zeros(EXPERTS, np.float32)
        scores[list(self.guess(self.token, layer + 1))] = 0.9
        return [Forecast(layer + 1, scores)]


class Clairvoyant:
    """Expected next uses that are true ones."""

    name = "clairvoyant"

    def __init__(self, run: Run) -> None:
        self.run = run

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def expected(self, layer: int, x: np.ndarray, topk_ids: np.ndarray) -> np.ndarray:
        ahead = np.full((1, EXPERTS), 100.0)
        for distance in range(20, 0, -1):
            ahead[0, self.run.experts(self.run.token + distance, layer)] = distance
        return ahead

    def fresh(self) -> Clairvoyant:
        return Clairvoyant(self.run)


class Run:
    """A controller under `auto` whose clock and waiting the test decides; routing by a seeded plan."""

    def __init__(self, tmp_path: Path, right: bool, evict: str = "lru", forecast_evicts: bool = False) -> None:
        self.plan = np.random.default_rng(0)
        self.now = 0.0
        self.said: list[str] = []
        self.token = 0
        self.waited = self.busy = 0.0
        self.chosen: dict[tuple[int, int], list[int]] = {}
        self.store = FakeStore(tmp_path / "experts", num_layers=LAYERS, layout="shards")
        self.guesses = Guesses(self._right if right else self._wrong)
        places, self.backend = ExpertPlaces.of(self.store), ReferenceBackend()
        slots = plan_slots(places.slot_bytes, EXPERTS, (4 * LAYERS + 4) * max(places.slot_bytes))
        self.capacities = slots.capacities
        next_use = Clairvoyant(self) if forecast_evicts else None
        plan = AutoPlan(self.guesses, K, K, make_policy("lfru") if forecast_evicts else None)
        self.controller = build_controller(
            places, slots, (HIDDEN, WIDTH), self.store.routers(K), self.backend,
            make_policy("pearl" if forecast_evicts else evict), ExactRouting(self.backend),
            read_file(self.store.path), next_use=next_use, notify=self.said.append, auto=plan,
        )  # fmt: skip
        prefetcher = self.controller._prefetcher
        assert prefetcher is not None
        self.prefetcher = prefetcher
        self.auto._now = prefetcher._now = prefetcher.governor._now = lambda: self.now

    @property
    def auto(self) -> AutoForecasts:
        assert self.controller.auto is not None
        return self.controller.auto

    def experts(self, token: int, layer: int) -> list[int]:
        key = (token, layer)
        if key not in self.chosen:
            self.chosen[key] = np.random.default_rng([token, layer]).choice(EXPERTS, K, replace=False).tolist()
        return self.chosen[key]

    def _right(self, token: int, layer: int) -> list[int]:
        return self.experts(token, layer)

    def _wrong(self, token: int, layer: int) -> list[int]:
        return [e for e in range(EXPERTS) if e not in self.experts(token, layer)][:K]

    def decode(self, n_tokens: int, ms: Callable[[bool], float], stall_ms: Callable[[bool], float]) -> None:
        """Tokens that take ms(fetching), of which stall_ms(fetching) are waited."""
        for _ in range(n_tokens):
            self._set_times()
            self.controller.begin(np.zeros(1, np.int64), self.token, "decode")
            fetching = self.prefetcher.fetching
            for layer in range(LAYERS):
                self._layer(layer, 1)
            self.now += ms(fetching) / 1e3
            self.waited += stall_ms(fetching) / 1e3
            self.busy += 1e-3
            self._set_times()
            self.controller.end()
            self.token += 1

    def _set_times(self) -> None:
        """What this machine took does not matter."""
        self.controller.queue.stats.stall_s, self.controller.queue.stats.busy_s = self.waited, self.busy

    def prompt(self, n_tokens: int) -> None:
        self.controller.begin(np.zeros(n_tokens, np.int64), self.token, "prefill")
        for layer in range(LAYERS):
            self._layer(layer, n_tokens)
        self.controller.end()
        self.token += n_tokens

    def _layer(self, layer: int, n_tokens: int) -> None:
        logits = np.full((n_tokens, EXPERTS), -9.0, np.float32)
        for row in range(n_tokens):
            logits[row, self.experts(self.token + row, layer)] = [2.0, 1.0]
        x = np.random.default_rng([self.token, layer, 1]).standard_normal((n_tokens, HIDDEN)).astype(np.float32)
        a = self.backend.activations(x)
        routing = self.controller.select(layer, x, a, logits)
        got = self.controller.compute(layer, a, routing)
        np.testing.assert_array_equal(got, self.store.expected(layer, x, routing))

    def kept(self) -> list[int]:
        return [state.cache.capacity for state in self.controller.layers if state is not None]


def until(run: Run, stage: Stage, ms: Callable[[bool], float], stall_ms: Callable[[bool], float]) -> int:
    """Decode until `stage`; returns the tokens."""
    for n_tokens in range(1000):
        if run.auto.stage is stage:
            return n_tokens
        run.decode(1, ms, stall_ms)
    raise AssertionError(f"still {run.auto.stage}")


def test_right_forecasts_that_save_time_are_fetched_by_and_said_once(tmp_path: Path) -> None:
    run = Run(tmp_path, right=True)
    noise = itertools.cycle([0.0, 0.3, -0.2, 0.1])
    ms, stall = (lambda on: (7.0 if on else 10.0) + next(noise)), (lambda on: 2.0 if on else 5.0)
    until(run, Stage.SETTLED, ms, stall)
    assert run.auto.verdict is not None
    assert run.auto.verdict.fetch
    assert sum(run.kept()) == sum(run.capacities) - K  # lent while it fetches
    run.decode(200, ms, stall)
    assert run.controller.totals.useful_prefetch_bytes > 0
    assert run.said == []  # no line tears a reply
    run.prompt(5)
    run.prompt(5)
    assert len(run.said) == 1
    assert "fetching ahead" in run.said[0]
    run.controller.close()


def test_in_shadow_nothing_is_read_and_nothing_taken_from_the_keptexperts(tmp_path: Path) -> None:
    watched, plain = Run(tmp_path, right=True), Run(tmp_path, right=True)
    plain.auto.pause(True)
    same = (lambda on: 10.0), (lambda on: 5.0)
    until(watched, Stage.WATCH, *same)
    watched.decode(30, *same)
    assert watched.auto.stage is Stage.WATCH
    assert watched.guesses.asked > 60
    plain.decode(watched.token, *same)
    assert plain.guesses.asked == 0
    for mine, other in zip(watched.controller.layers, plain.controller.layers, strict=True):
        assert mine is not None
        assert other is not None
        np.testing.assert_array_equal(mine.cache.resident, other.cache.resident)
        np.testing.assert_array_equal(mine.slot_of >= 0, other.slot_of >= 0)
    assert watched.controller.demand.misses.tolist() == plain.controller.demand.misses.tolist()
    assert watched.controller.queue.stats.prefetch_bytes == 0
    watched.controller.close()
    plain.controller.close()


def test_fetching_that_the_clock_does_not_confirm_ends_and_gives_the_slots_back(tmp_path: Path) -> None:
    run = Run(tmp_path, right=True)
    ms, stall = (lambda on: 10.5 if on else 10.0), (lambda on: 5.0)
    until(run, Stage.TRY, ms, stall)
    until(run, Stage.SETTLED, ms, stall)
    assert run.auto.verdict is not None
    assert not run.auto.verdict.fetch
    assert run.kept() == list(run.capacities)
    assert "tried" in run.auto.verdict.line()
    before = run.controller.queue.stats.prefetch_bytes
    run.decode(100, ms, stall)
    assert run.controller.queue.stats.prefetch_bytes == before
    run.controller.close()


def test_wrong_forecasts_are_never_fetched(tmp_path: Path) -> None:
    run = Run(tmp_path, right=False)
    until(run, Stage.SETTLED, lambda on: 10.0, lambda on: 5.0)
    run.decode(100, lambda on: 10.0, lambda on: 5.0)
    assert run.auto.verdict is not None
    assert not run.auto.verdict.fetch
    assert run.auto.verdict.measured.precision == 0.0
    assert run.controller.queue.stats.prefetch_bytes == 0
    assert run.kept() == list(run.capacities)
    run.controller.close()
    assert len(run.said) == 1
    assert "not fetching" in run.said[0]


def test_where_nothing_waits_nobody_is_asked(tmp_path: Path) -> None:
    run = Run(tmp_path, right=True)
    run.decode(300, lambda on: 10.0, lambda on: 0.4)
    assert (run.guesses.asked, run.auto.stage, run.auto.verdict) == (0, Stage.WAIT, None)
    run.controller.close()
    assert run.said == []


def test_other_misses_make_it_look_again_and_a_choice_that_stays_is_not_said_again(tmp_path: Path) -> None:
    run = Run(tmp_path, right=False)
    ms, stall = (lambda on: 10.0), (lambda on: 5.0)
    until(run, Stage.SETTLED, ms, stall)
    asked = run.guesses.asked
    run.decode(400, ms, stall)
    assert run.guesses.asked == asked
    run.chosen = {(token, layer): [0, 1] for token in range(3000) for layer in range(LAYERS)}  # now nothing is missed
    run.decode(400, ms, stall)
    assert run.guesses.asked > asked
    run.controller.close()
    assert len(run.said) == 1


@pytest.mark.parametrize("takes_ms", [0.0, 50.0])
def test_the_forecast_that_evicts_stays_only_where_it_saves_more_than_it_takes(tmp_path: Path, takes_ms: float) -> None:
    """Every miss waits, and true next uses miss less than lfru."""
    run = Run(tmp_path, right=False, forecast_evicts=True)
    demand = run.controller.demand

    def account(call: GateCall) -> None:
        demand.all_forecast_s += takes_ms / 1e3 / LAYERS
        demand.forecast_s += takes_ms / 1e3 / LAYERS

    run.controller._account = account  # type: ignore[method-assign]
    until(run, Stage.SETTLED, lambda on: 100.0, lambda on: 8.0)
    verdict = run.auto.verdict
    assert verdict is not None
    assert verdict.forecaster == "clairvoyant"
    assert verdict.measured.cheap_misses > 0
    assert verdict.policy == ("pearl" if takes_ms == 0.0 else "lfru")
    asked = run.auto.next_use
    assert (asked is not None) == (takes_ms == 0.0)
    run.decode(20, lambda on: 100.0, lambda on: 8.0)
    assert (run.controller._next_use is not None) == (takes_ms == 0.0)  # the cheap policy asks nobody
    assert ("lfru instead" in verdict.line()) == (takes_ms > 0.0)
    run.controller.close()
