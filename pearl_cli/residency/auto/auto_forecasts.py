"""`AutoForecasts`: finds out while decoding whether forecasts pay, and goes by it.

A run begins as cheaply as it can: the forecast beside the model evicts where there is one, nothing is fetched. Once
tokens wait for experts (or a forecast evicts, which takes time itself) it *watches* some tokens: next-gate says what it
would have had fetched, and other caches say what lending slots to it, or evicting without a forecast, would miss. By
`worth` that becomes a choice. Fetching is then *tried*, against the clock, before it stays. Later it looks again where
misses or link have changed. Only one row of decoding is looked at; results never depend on any of it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from enum import Enum

import numpy as np

from pearl_cli.predict.base import NextUse
from pearl_cli.residency.auto.choices import ForecastChoices
from pearl_cli.residency.auto.stretch import Counters, DecodeStretch
from pearl_cli.residency.auto.trial import FetchTrial
from pearl_cli.residency.auto.verdict import Verdict
from pearl_cli.residency.auto.watch import ForecastWatch
from pearl_cli.residency.auto.worth import STALL_SHARE, eviction_gain_ms, lending_ms, pays_to_fetch
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.stats import DemandStats, TransferStats

_FIRST_TOKENS = 8  # after a start or a change, while caches fill: not counted
_WAIT = 16  # decoded tokens before it watches, or sees that there is nothing to watch for
_STRETCH = 32  # decoded tokens in one figure that is compared
_ENOUGH_FORECASTS = 100  # settled in shadow; fewer make a longer watch
_LONGEST_WATCH = 64
_CHANGED = 1.5  # misses or link by this factor, twice in a row: look again
_LOOK_AGAIN_AFTER = 256  # tokens at least; doubled with every look that ends as the one before
_SELDOMEST = 8192
_SAMPLE = 4  # once decided, one token in so many is measured


class Stage(Enum):
    WAIT = "too little is known"
    WATCH = "forecasts are scored"
    TRY = "fetching is held against the clock"
    SETTLED = "decided until something changes"


class AutoForecasts:
    """verdict: what was chosen last, None before. Not thread-safe."""

    def __init__(
        self,
        choices: ForecastChoices,
        demand: DemandStats,
        transfers: TransferStats,
        notify: Callable[[str], None] | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.stage = Stage.WAIT
        self.verdict: Verdict | None = None
        self._choices = choices
        self._demand, self._transfers = demand, transfers
        self._notify, self._now = notify, now
        self._watch: ForecastWatch | None = None
        self._stretch = DecodeStretch()
        self._reference: DecodeStretch | None = None  # figures of which a change means to look again
        self._changes = 0
        self._skip = _FIRST_TOKENS
        self._since_look, self._look_after = 0, _LOOK_AGAIN_AFTER
        self._started: tuple[float, float, Counters] | None = None
        self._trial: tuple[Verdict, FetchTrial] | None = None
        self._paused = False
        self._unsaid = False

    @property
    def next_use(self) -> NextUse | None:
        """What evicts now; None where that is a policy without a forecast."""
        return self._choices.next_use

    def begin(self, n_tokens: int, phase: str) -> None:
        """Before each forward call. What is in force changes here and nowhere else."""
        self._started = None
        if self._paused:
            return
        if phase != "decode" or n_tokens != 1:
            self.say()
            if self._watch is not None:
                self._watch.interrupt()
            return
        self._since_look += 1
        if self.stage is Stage.SETTLED and self._since_look % _SAMPLE:
            return
        self._move_on()
        watched = self._watch.delay_s if self._watch is not None else 0.0
        self._started = self._now(), watched, Counters.of(self._demand, self._transfers)

    def gate(self, state: LayerState, topk_ids: np.ndarray, n_missing: int, expected: np.ndarray | None) -> None:
        """After each event [T, K] of a layer whose experts are not all there; expected: of its last row, what eviction
        goes by, where that looks ahead.
        """
        if expected is not None:
            self._choices.expected[state.layer] = expected
        if self._watch is not None and self._started is not None:
            self._watch.gate(state, topk_ids[0], n_missing, expected)

    def layer_done(self, waited: bool) -> None:
        """The layer of the last `gate` is computed; waited: for experts, after all that could be done meanwhile."""
        if self._watch is not None:
            self._watch.layer_done(waited)

    def end(self) -> None:
        """After a forward call that was computed to its end."""
        if self._started is None:
            return
        (moment, watched, before), self._started = self._started, None
        if self._skip:
            self._skip -= 1
            return
        elapsed = self._now() - moment
        if self._watch is not None:
            self._watch.layer_done(waited=False)
            elapsed -= self._watch.delay_s - watched
        if self.stage is Stage.TRY and self._trial is not None:
            self._trial[1].add(1e3 * elapsed)
        self._stretch.add(1e3 * elapsed, before, Counters.of(self._demand, self._transfers))

    def restart(self) -> None:
        """Residents were lost: what is being measured begins anew; what was decided stays."""
        self._started = None
        if self.stage is Stage.TRY:
            self._choices.fetch(False)
        self._begin(Stage.SETTLED if self.stage is Stage.SETTLED else Stage.WAIT)

    def pause(self, paused: bool) -> None:
        """Paused, all is as at the start of a run and nothing is measured: for routing that goes by a cache."""
        self._paused = paused
        self._look_again()

    def say(self) -> None:
        """Tell the user of a choice that was not told yet; between two replies, so that no text is torn."""
        if self._unsaid and self.verdict is not None and self._notify is not None:
            self._notify(self.verdict.line())
        self._unsaid = False

    def _begin(self, stage: Stage, skip: int = _FIRST_TOKENS) -> None:
        self.stage, self._skip, self._stretch = stage, skip, DecodeStretch()
        if stage is not Stage.TRY:
            self._trial = None
        watching = stage is Stage.WATCH
        self._watch = ForecastWatch(self._choices.shares, self._choices.cheap, self._now) if watching else None
        self._choices.prefetcher.shadow = self._watch.score if self._watch is not None else None

    def _look_again(self) -> None:
        self._choices.fetch(False)
        self._choices.evict_by_forecast(True)
        self._reference, self._changes = None, 0
        self._begin(Stage.WAIT)

    def _move_on(self) -> None:
        stretch = self._stretch
        if self.stage is Stage.WAIT and stretch.n_tokens >= _WAIT:
            worth_a_look = self._choices.forecaster is not None or stretch.stall_share >= STALL_SHARE
            self._begin(Stage.WATCH if worth_a_look else Stage.WAIT, skip=0)
        elif self.stage is Stage.WATCH and self._watch is not None:
            enough = self._watch.score.right + self._watch.score.wrong >= _ENOUGH_FORECASTS
            if stretch.n_tokens >= (_STRETCH if enough else _LONGEST_WATCH):
                self._decide(self._watch)
        elif self.stage is Stage.TRY and self._trial is not None:
            self._go_on_trying(*self._trial)
        elif self.stage is Stage.SETTLED and self._choices.fetching and not self._choices.prefetcher.governor.enabled:
            self._stop()
        elif self.stage is Stage.SETTLED and stretch.n_tokens >= _STRETCH:
            self._compare()

    def _decide(self, watch: ForecastWatch) -> None:
        choices, stretch = self._choices, self._stretch
        m = watch.measured(stretch, choices.prefetcher.governor.link_load)
        tokens = stretch.n_tokens
        watch_ms = 1e3 * watch.seconds / tokens
        verdict = Verdict(m, choices.fetcher, False, choices.forecaster, choices.policy, watch_ms, tokens)
        if not pays_to_fetch(m):
            self._settle(verdict)
            return
        self._trial = verdict, FetchTrial(lending_ms(m))
        choices.fetch(True)
        self._begin(Stage.TRY)

    def _go_on_trying(self, verdict: Verdict, trial: FetchTrial) -> None:
        outcome = trial.outcome() if self._choices.prefetcher.governor.enabled else False
        if outcome is None:
            self._choices.hold_fetching(not trial.on)
        else:
            tried = trial.means_ms() if trial.without_ms else None
            self._settle(dataclasses.replace(verdict, tried_ms=tried, fetch=outcome, stopped=tried is None))

    def _stop(self) -> None:
        """The governor has seen too many wrong forecasts."""
        if self.verdict is not None:
            self._settle(dataclasses.replace(self.verdict, fetch=False, stopped=True))

    def _settle(self, verdict: Verdict) -> None:
        """Go by `verdict` until something changes. The user is told where it is another choice than before."""
        self._choices.fetch(verdict.fetch)
        self._choices.evict_by_forecast(eviction_gain_ms(verdict.measured, verdict.fetch) > 0.0)
        verdict = dataclasses.replace(verdict, policy=self._choices.policy)
        before, self.verdict = self.verdict, verdict
        same = before is not None and (before.fetch, before.policy) == (verdict.fetch, verdict.policy)
        self._unsaid = self._unsaid or not same
        self._look_after = min(2 * self._look_after, _SELDOMEST) if same else _LOOK_AGAIN_AFTER
        self._since_look, self._reference, self._changes = 0, None, 0
        self._begin(Stage.SETTLED)

    def _compare(self) -> None:
        """Hold the newest stretch against the first after the choice."""
        if self._reference is None:
            self._reference = self._stretch
        elif self._stretch.differs(self._reference, _CHANGED):
            self._changes += 1
        else:
            self._changes = 0
        if self._changes >= 2 and self._since_look >= self._look_after:
            self._look_again()
        else:
            self._begin(Stage.SETTLED, skip=0)
