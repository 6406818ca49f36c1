"""Whether a forecast is worth its read: expected saved stall against expected delay of others, and a measured verdict
on the whole.

Model: an expert is read in 3 chunks. A right forecast (probability p) saves its reader up to 3 chunk times of stall, as
far as it is read while no demand keeps the link: that share of time is 1 - u. A wrong one costs at most one chunk time,
because a demand overtakes at the chunk border, and only when a demand comes while it is read; u stands for that chance.
So a fetch pays where 3 p (1 - u) > (1 - p) u, that is p > u / (u + 3 (1 - u)).
Replays of a recorded Qwen3-30B trace with forecasts of falling precision broke even at p = .11, .23, .40 and .6 where
demands kept the link busy for .25, .50, .64 and .84 of the time; the bound gives .10, .25, .37 and .64.
The same bound, put on measured precision, decides whether prefetching stays on.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pearl_cli.residency.stats import TransferStats

_CHUNKS = 3
_SMOOTHING = 0.1  # weight of the newest token in the running link load
_MIN_SCORE = 0.05  # below this even an idle link only churns slots
_JUDGE_AFTER = 200  # forecasts settled before a verdict on precision


class PrefetchGovernor:
    """`enabled` turns False when forecasts fetch more than they save, until `restart`; `threshold` is the least score
    worth a fetch.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.enabled = True
        self.link_load = 0.0
        self.useful = 0
        self.wasted = 0
        self._now = now
        self._last: tuple[float, int, float] | None = None

    @property
    def threshold(self) -> float:
        return max(_MIN_SCORE, self.link_load / (self.link_load + _CHUNKS * (1.0 - self.link_load)))

    def restart(self) -> None:
        """Fetching begins again: what was fetched before says nothing of it."""
        self.enabled = True
        self.useful = self.wasted = 0

    def settle(self, useful: bool) -> None:
        """One forecast expert was demanded, or was given up after bytes had been read for it."""
        if useful:
            self.useful += 1
        else:
            self.wasted += 1

    def observe_link(self, stats: TransferStats) -> str | None:
        """Once per token: update the link load. Returns a sentence when prefetching has just been switched off."""
        moment = self._now()
        bytes_read = stats.read_bytes
        if self._last is not None and moment > self._last[0] and bytes_read:
            busy_s = (stats.demand_bytes - self._last[1]) * stats.busy_s / bytes_read
            share = min(1.0, busy_s / (moment - self._last[0]))
            self.link_load += _SMOOTHING * (share - self.link_load)
        self._last = (moment, stats.demand_bytes, stats.busy_s)
        return self._judge()

    def _judge(self) -> str | None:
        settled = self.useful + self.wasted
        if not self.enabled or settled < _JUDGE_AFTER:
            return None
        if self.useful / settled >= self.threshold:
            self.useful, self.wasted = self.useful // 2, self.wasted // 2  # an old text fades from the verdict
            return None
        self.enabled = False
        if not self.useful:
            return f"prefetching switched off: none of {settled} experts fetched was used"
        per_use = settled / self.useful
        load = f"link {self.link_load:.0%} busy with demands"
        return f"prefetching switched off: {per_use:.1f} experts fetched for each one used, {load}"
