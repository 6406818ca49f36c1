"""Whether a forecast is worth its read: expected saved stall against expected delay of others, and a measured verdict
on the whole.

Model: an expert is read in 3 chunks. A right forecast (probability p) saves its reader up to 3 chunk times of stall, as
far as it is read while no demand keeps the link: that share of time is 1 - u. A wrong one costs at most one chunk time,
because a demand overtakes at the chunk border, and only when a demand comes while it is read; u stands for that chance.
So a fetch pays where 3 p (1 - u) > (1 - p) u, that is p > u / (u + 3 (1 - u)).
Replays of a recorded Qwen3-30B trace with forecasts of falling precision broke even at p = .11, .23, .40 and .6 where
demands kept the link busy for .25, .50, .64 and .84 of the time; the bound gives .10, .25, .37 and .64.
The same bound, put on measured precision, decides whether prefetching stays on. Where it does not, forecasts are not
even asked for, until some tokens later they are rehearsed: scored without a fetch. If those would have paid, fetching
goes on; if not, the next rest is twice as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from pearl_cli.residency.shadow_score import ShadowScore
from pearl_cli.residency.stats import TransferStats

_CHUNKS = 3
_SMOOTHING = 0.1  # weight of the newest token in the running link load
_MIN_SCORE = 0.05  # below this even an idle link only churns slots
_JUDGE_AFTER = 200  # forecasts settled before a verdict on precision
_JUDGE_AFTER_TOKENS = 16  # and tokens: what learns while serving begins with guesses, hundreds of them in one token
_REST_TOKENS = 256
_LONGEST_REST = 8192
_REHEARSAL_TOKENS = 32
_LEAST_REHEARSED = 16  # forecasts; with fewer there is next to nothing to fetch


class PrefetchGovernor:
    """enabled: forecasts may be fetched; rehearsing: they may not, but are to be asked for and settled by what their
    gates then choose; with neither nobody need be asked. rehearsal: what this rehearsal expects; threshold: the least
    score worth a fetch.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.enabled = True
        self.rehearsing = False
        self.link_load = 0.0
        self.useful = 0
        self.wasted = 0
        self.rehearsal = ShadowScore()
        self._tokens = 0  # since `enabled` or `rehearsing` changed
        self._rest = self._next_rest = _REST_TOKENS
        self._now = now
        self._last: tuple[float, int, float] | None = None

    @property
    def threshold(self) -> float:
        return max(_MIN_SCORE, self.link_load / (self.link_load + _CHUNKS * (1.0 - self.link_load)))

    def restart(self) -> None:
        """Fetching begins again: what was fetched before says nothing of it."""
        self._next_rest = _REST_TOKENS
        self._turn(enabled=True)

    def settle(self, useful: bool) -> None:
        """One forecast expert was demanded, or was given up after bytes had been read for it; in a rehearsal, was
        chosen by its gate or not.
        """
        if useful:
            self.useful += 1
        else:
            self.wasted += 1

    def rehearse(self, layer: int, topk_ids: np.ndarray) -> None:
        """The next event of `layer` has chosen topk_ids [K]: settle what `rehearsal` expected there."""
        for found in self.rehearsal.gate(layer, topk_ids):
            self.settle(found)

    def observe_link(self, stats: TransferStats) -> str | None:
        """Once per token: update the link load. Returns a sentence when prefetching has just been switched off, or on
        again.
        """
        moment = self._now()
        bytes_read = stats.read_bytes
        if self._last is not None and moment > self._last[0] and bytes_read:
            busy_s = (stats.demand_bytes - self._last[1]) * stats.busy_s / bytes_read
            share = min(1.0, busy_s / (moment - self._last[0]))
            self.link_load += _SMOOTHING * (share - self.link_load)
        self._last = (moment, stats.demand_bytes, stats.busy_s)
        self._tokens += 1
        if self.enabled:
            return self._judge()
        if self.rehearsing and self._tokens >= _REHEARSAL_TOKENS:
            return self._end_rehearsal()
        if not self.rehearsing and self._tokens >= self._rest:
            self._turn(rehearsing=True)
        return None

    def _turn(self, enabled: bool = False, rehearsing: bool = False) -> None:
        self.enabled, self.rehearsing = enabled, rehearsing
        self.useful = self.wasted = self._tokens = 0
        self.rehearsal = ShadowScore()

    def _judge(self) -> str | None:
        useful, settled = self.useful, self.useful + self.wasted
        if settled < _JUDGE_AFTER or self._tokens < _JUDGE_AFTER_TOKENS:
            return None
        if useful / settled >= self.threshold:
            self.useful, self.wasted = self.useful // 2, self.wasted // 2  # an old text fades from the verdict
            return None
        self._begin_rest()
        again = f"looked at again after {self._rest} tokens"
        if not useful:
            return f"prefetching switched off: none of {settled} experts fetched was used; {again}"
        load = f"link {self.link_load:.0%} busy with demands"
        return f"prefetching switched off: {settled / useful:.1f} experts fetched for each one used, {load}; {again}"

    def _end_rehearsal(self) -> str | None:
        useful, settled = self.useful, self.useful + self.wasted
        if settled < _LEAST_REHEARSED or useful / settled < self.threshold:
            self._begin_rest()
            return None
        self._turn(enabled=True)
        return f"prefetching on again: of {settled} experts that it would have fetched {useful} were used"

    def _begin_rest(self) -> None:
        self._turn()
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
