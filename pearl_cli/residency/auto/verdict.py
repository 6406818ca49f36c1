"""What `--predictor auto` measured and chose, as one line for people and as fields of a bench record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pearl_cli.residency.auto.worth import STALL_SHARE, Measured, eviction_cost_ms, eviction_gain_ms, fetch_gain_ms


@dataclass(frozen=True, slots=True)
class Verdict:
    """fetcher: what was watched; fetch: whether it fetches now; tried_ms: (a token without it, with it) where fetching
    was tried; stopped: it fetched more than it saved. forecaster: what may evict, None where that was not in question;
    policy: what evicts now; watch_ms: what watching took, a token, in watched_tokens.
    """

    measured: Measured
    fetcher: str
    fetch: bool
    forecaster: str | None
    policy: str
    watch_ms: float
    watched_tokens: int
    tried_ms: tuple[float, float] | None = None
    stopped: bool = False

    def line(self) -> str:
        m = self.measured
        waiting = f"auto: {m.stall_share:.0%} of {m.token_ms:.2f} ms a token wait for experts"
        return f"{waiting}; {self._of_fetching()}{self._of_eviction()}"

    def fields(self) -> dict[str, Any]:
        return {
            "auto_fetches": self.fetcher if self.fetch else "none",
            "auto_evicts": self.policy,
            "auto_line": self.line(),
            "auto_watch_ms": self.watch_ms,
            "auto_watched_tokens": self.watched_tokens,
            "auto_tried_ms": list(self.tried_ms) if self.tried_ms is not None else None,
            "auto_fetch_gain_ms": fetch_gain_ms(self.measured),
            "auto_measured": asdict(self.measured),
        }

    def _of_fetching(self) -> str:
        m = self.measured
        end = "fetching ahead" if self.fetch else "not fetching"
        if m.stall_share < STALL_SHARE:
            return f"too little to fetch for: {end}"
        quality = f"{m.precision:.0%} right, {m.recall:.0%} of misses, {m.fetch_forecast_ms:.2f} ms"
        gain = fetch_gain_ms(m)
        worth = f"would save {gain:.2f} ms" if gain > 0 else f"would cost {-gain:.2f} ms"
        if self.stopped:
            worth = "fetched more than it saved"
        elif self.tried_ms is not None:
            worth = f"tried, {self.tried_ms[1]:.2f} ms a token against {self.tried_ms[0]:.2f}"
        return f"{self.fetcher} ({quality}) {worth}: {end}"

    def _of_eviction(self) -> str:
        if self.forecaster is None:
            return ""
        m = self.measured
        cost = eviction_cost_ms(m, self.fetch)
        saved = max(0.0, eviction_gain_ms(m, self.fetch) + cost)
        costs = f"evicting by {self.forecaster} saves {saved:.2f} ms and costs {cost:.2f}"
        return f"; {costs}: {'kept' if self.policy == 'pearl' else f'{self.policy} instead'}"
