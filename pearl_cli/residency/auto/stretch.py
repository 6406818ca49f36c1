"""Sums over a run of decoded tokens: what `--predictor auto` compares. Prompts in between are not counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from pearl_cli.residency.stats import DemandStats, TransferStats

_OUTLIERS = 10  # one token in so many, the slowest, is not looked at: the machine's, not ours


@dataclass(frozen=True, slots=True)
class Counters:
    """The engine's sums at one moment. needed_bytes: of experts that were not resident, fetched ahead or not;
    evict_forecast_s: what forecasts for eviction took, delay_s: of it where no wait for experts came after it."""

    misses: int
    miss_bytes: int
    needed_bytes: int
    stall_s: float
    busy_s: float
    read_bytes: int
    evict_forecast_s: float
    delay_s: float

    @classmethod
    def of(cls, demand: DemandStats, transfers: TransferStats) -> Counters:
        return cls(
            int(demand.misses.sum()), demand.miss_bytes, demand.miss_bytes + demand.useful_prefetch_bytes,
            transfers.stall_s, transfers.busy_s, transfers.read_bytes,
            demand.all_forecast_s, demand.forecast_s,
        )  # fmt: skip


@dataclass(slots=True)
class DecodeStretch:
    """token_ms: of each forward call; the others are sums over all of them, as in `Counters`."""

    token_ms: list[float] = field(default_factory=list)
    misses: int = 0
    miss_bytes: int = 0
    needed_bytes: int = 0
    stall_s: float = 0.0
    busy_s: float = 0.0
    read_bytes: int = 0
    evict_forecast_s: float = 0.0
    delay_s: float = 0.0

    def add(self, token_ms: float, before: Counters, after: Counters) -> None:
        self.token_ms.append(token_ms)
        self.misses += after.misses - before.misses
        self.miss_bytes += after.miss_bytes - before.miss_bytes
        self.needed_bytes += after.needed_bytes - before.needed_bytes
        self.stall_s += after.stall_s - before.stall_s
        self.busy_s += after.busy_s - before.busy_s
        self.read_bytes += after.read_bytes - before.read_bytes
        self.evict_forecast_s += after.evict_forecast_s - before.evict_forecast_s
        self.delay_s += after.delay_s - before.delay_s

    @property
    def n_tokens(self) -> int:
        return len(self.token_ms)

    @property
    def mean_ms(self) -> float:
        """Of the tokens without the slowest tenth."""
        kept = sorted(self.token_ms)[: self.n_tokens - self.n_tokens // _OUTLIERS]
        return sum(kept) / len(kept)

    @property
    def stall_ms(self) -> float:
        return 1e3 * self.stall_s / self.n_tokens

    @property
    def stall_share(self) -> float:
        return 1e3 * self.stall_s / sum(self.token_ms)

    @property
    def link_s_per_byte(self) -> float:
        """0 where nothing was read."""
        return self.busy_s / self.read_bytes if self.read_bytes else 0.0

    @property
    def needed_per_token(self) -> float:
        return self.needed_bytes / self.n_tokens

    def differs(self, other: DecodeStretch, factor: float) -> bool:
        """Whether tokens need other amounts of missing experts, or the link has another speed, by more than `factor`.
        """
        pairs = [
            (self.needed_per_token, other.needed_per_token),
            (self.link_s_per_byte, other.link_s_per_byte),
        ]
        return any(max(pair) > factor * min(pair) for pair in pairs)
