"""What forecasts are worth in a run, in ms a decoded token: pure arithmetic on what was measured while nothing was
fetched by them.

Fetching ahead: a forecast is read in the time that demands leave to the link, as far as it fits there; a right one then
spares the wait for its expert. A wrong one (see `prefetch_governor`) holds the link for one of its three chunks where a
demand comes meanwhile, with the chance u that demands keep the link. The slots that forecasts land in are lent by the
kept experts, which costs misses. Forecasting takes time itself, but not where the layer waits for experts afterwards;
what fetching spares of that waiting no longer hides it.
Eviction by a forecast: fewer misses against its own time, hidden in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL_SHARE = 0.05  # of a token: below it there is nothing considerable to save
_CHUNKS = 3
_LEAST_GAIN = 0.01  # of a token: less is not worth a change


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures a decoded token. token_ms: its forward call, without what watching took; link_load: share of time that
    demands keep the link; link_ms: its time for one expert; right, wrong: experts that would have been fetched and were
    missed, or not chosen; lending_misses: misses more with the slots lent to forecasts; cheap_misses: misses more with
    the cheap eviction policy; *_hidden: share of the forecasts' time that only filled a wait.
    """

    token_ms: float
    stall_ms: float
    misses: float
    link_load: float
    link_ms: float
    right: float = 0.0
    wrong: float = 0.0
    fetch_forecast_ms: float = 0.0
    fetch_hidden: float = 0.0
    lending_misses: float = 0.0
    evict_forecast_ms: float = 0.0
    evict_hidden: float = 0.0
    cheap_misses: float = 0.0

    @property
    def stall_share(self) -> float:
        return self.stall_ms / self.token_ms if self.token_ms else 0.0

    @property
    def precision(self) -> float:
        asked = self.right + self.wrong
        return self.right / asked if asked else 0.0

    @property
    def recall(self) -> float:
        """Share of the misses that would have been fetched."""
        return min(1.0, self.right / self.misses) if self.misses else 0.0

    @property
    def stall_per_miss_ms(self) -> float:
        return self.stall_ms / self.misses if self.misses else 0.0


def share_spared(m: Measured) -> float:
    """Of the waiting for missed experts, what fetching ahead would spare."""
    free_ms = (1.0 - m.link_load) * m.token_ms
    asked_ms = (m.right + m.wrong) * m.link_ms
    return m.recall * (min(1.0, free_ms / asked_ms) if asked_ms else 1.0)


def fetch_gain_ms(m: Measured) -> float:
    """ms a token that fetching ahead would save, less than 0 where it would cost."""
    spared = share_spared(m)
    waiting = m.stall_per_miss_ms * (spared * m.misses - m.lending_misses * (1.0 - spared))
    delay = m.wrong * m.link_load * m.link_ms / _CHUNKS
    return waiting - delay - _visible(m.fetch_forecast_ms, m.fetch_hidden, spared)


def pays_to_fetch(m: Measured) -> bool:
    return m.stall_share >= STALL_SHARE and fetch_gain_ms(m) > _LEAST_GAIN * m.token_ms


def eviction_cost_ms(m: Measured, fetching: bool) -> float:
    """What evicting by the forecast delays a token by."""
    return _visible(m.evict_forecast_ms, m.evict_hidden, share_spared(m) if fetching else 0.0)


def eviction_gain_ms(m: Measured, fetching: bool) -> float:
    """ms a token that evicting by the forecast saves against the cheap policy."""
    left = 1.0 - share_spared(m) if fetching else 1.0
    return m.cheap_misses * m.stall_per_miss_ms * left - eviction_cost_ms(m, fetching)


def lending_ms(m: Measured) -> float:
    """What the lent slots cost a token."""
    return m.lending_misses * m.stall_per_miss_ms


def _visible(forecast_ms: float, hidden: float, spared: float) -> float:
    """Of the time of forecasts, what a token takes longer for when `spared` of the waiting that hides it is gone."""
    return forecast_ms * (1.0 - hidden * (1.0 - spared))
