"""What is counted at each gate while `--predictor auto` looks at forecasts: the misses that other choices would have
had. Nothing is fetched or evicted by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from pearl_cli.residency.auto.stretch import DecodeStretch
from pearl_cli.residency.auto.worth import Measured
from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.eviction import EvictionPolicy
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.shadow_score import ShadowScore


class ForecastWatch:
    """score: of forecasts for fetching; shares: slots that each layer would lend to them. cheap: the eviction policy to
    compare with, None where eviction is not in question.
    """

    def __init__(
        self,
        shares: Mapping[int, int],
        cheap: EvictionPolicy | None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.score = ShadowScore()
        self._shares = shares
        self._cheap = cheap
        self._now = now
        self._lending = _Ghosts()
        self._cheaply = _Ghosts()
        self._gate_s = 0.0
        self._accounted_s = 0.0
        self.delay_s = 0.0

    @property
    def seconds(self) -> float:
        """What watching took so far; `delay_s` of it where no wait for experts came after it in the same layer."""
        return self.score.seconds + self._gate_s

    def layer_done(self, waited: bool) -> None:
        """A layer is computed. What was done before a wait has only filled it."""
        if not waited:
            self.delay_s += self.seconds - self._accounted_s
        self._accounted_s = self.seconds

    def gate(self, state: LayerState, topk_ids: np.ndarray, n_missing: int, expected: np.ndarray | None) -> None:
        """One decoded token's event [K] of a layer, after its cache has been told; n_missing: of it were not there;
        expected: what eviction goes by, where that looks ahead.
        """
        started = self._now()
        self.score.gate(state.layer, topk_ids)
        cache = state.own_cache
        self._lending.event(cache, topk_ids, n_missing, expected, cache.policy, self._shares.get(state.layer, 0))
        if self._cheap is not None:
            self._cheaply.event(cache, topk_ids, n_missing, None, self._cheap, 0)
        self._gate_s += self._now() - started

    def interrupt(self) -> None:
        """Residency went its way unwatched: the others begin anew from what is there."""
        self._lending.caches.clear()
        self._cheaply.caches.clear()

    def measured(self, stretch: DecodeStretch, link_load: float) -> Measured:
        """stretch: the tokens that were watched."""
        tokens = stretch.n_tokens
        hidden_s = self._accounted_s - self.delay_s
        expert_bytes = stretch.miss_bytes / stretch.misses if stretch.misses else 0.0
        return Measured(
            token_ms=stretch.mean_ms,
            stall_ms=stretch.stall_ms + 1e3 * hidden_s / tokens,
            misses=stretch.misses / tokens,
            link_load=link_load,
            link_ms=1e3 * stretch.link_s_per_byte * expert_bytes,
            right=self.score.right / tokens,
            wrong=self.score.wrong / tokens,
            fetch_forecast_ms=1e3 * self.score.seconds / tokens,
            lending_misses=max(0.0, self._lending.more / tokens),
            fetch_hidden=hidden_s / self._accounted_s if self._accounted_s else 0.0,
            evict_forecast_ms=1e3 * stretch.evict_forecast_s / tokens,
            evict_hidden=1.0 - stretch.delay_s / stretch.evict_forecast_s if stretch.evict_forecast_s else 0.0,
            cheap_misses=self._cheaply.more / tokens,
        )


class _Ghosts:
    """Other caches over the layers' histories. more: misses they had beyond those that there were."""

    def __init__(self) -> None:
        self.caches: dict[int, LayerCache] = {}
        self.more = 0

    def event(
        self, cache: LayerCache, topk_ids: np.ndarray, n_missing: int, expected: np.ndarray | None,
        policy: EvictionPolicy, less: int,
    ) -> None:  # fmt: skip
        ghost = self.caches.get(cache.layer)
        if ghost is None:
            ghost = self.caches[cache.layer] = cache.ghost(policy)
            ghost.resize(cache.capacity - less, expected)
            return
        self.more += int(np.count_nonzero(~ghost.resident[topk_ids])) - n_missing
        ghost.keep(topk_ids, expected)
