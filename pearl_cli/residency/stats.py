"""Counters of the residency engine: what was asked for, what was read, and how long anyone waited for it."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields

import numpy as np


def share_used(useful_bytes: int, wasted_bytes: int) -> float | None:
    """Of bytes read on forecasts that have met their gate or were given up; None before any has."""
    decided = useful_bytes + wasted_bytes
    return useful_bytes / decided if decided else None


@dataclass(slots=True)
class TransferStats:
    """Kept by the transfer queue under its lock. queue_wait_s is a sum over reads; busy_s is the time in which anything
    was being read, by however many threads.
    """

    reads: int = 0
    merged_chunks: int = 0  # chunks that came along with a neighbour's read
    merged_experts: int = 0  # whole experts that did
    demand_bytes: int = 0  # read for somebody who already waited
    prefetch_bytes: int = 0  # read on a forecast
    promoted: int = 0  # forecasts found demanded before they had landed
    dropped: int = 0  # forecasts given up before they were read to the end
    busy_s: float = 0.0
    queue_wait_s: float = 0.0
    stall_s: float = 0.0  # the computing thread had nothing to do but wait

    @property
    def read_bytes(self) -> int:
        return self.demand_bytes + self.prefetch_bytes

    def add_read(self, n_bytes: int, demanded: bool) -> None:
        self.reads += 1
        if demanded:
            self.demand_bytes += n_bytes
        else:
            self.prefetch_bytes += n_bytes


@dataclass(frozen=True, slots=True)
class TokenStats:
    """One forward call (one token while decoding).

    hits and misses count (layer, expert) demands at the gate; `promoted` are the misses whose read had been forecast;
    miss_bytes is what had to be demanded, prefetch_bytes what was read on a forecast. Bytes are useful or wasted once
    it is decided, which may be after the call that they were read in.
    """

    n_tokens: int = 0
    hits: int = 0
    misses: int = 0
    promoted: int = 0
    miss_bytes: int = 0
    prefetch_bytes: int = 0
    useful_prefetch_bytes: int = 0
    wasted_prefetch_bytes: int = 0
    stall_ms: float = 0.0

    @property
    def hit_rate(self) -> float:
        total = self.hits + self.misses
        return self.hits / total if total else 1.0

    @property
    def prefetch_precision(self) -> float | None:
        return share_used(self.useful_prefetch_bytes, self.wasted_prefetch_bytes)

    def __sub__(self, earlier: TokenStats) -> TokenStats:
        return TokenStats(*map(operator.sub, _fields_of(self), _fields_of(earlier)))

    def __add__(self, other: TokenStats) -> TokenStats:
        return TokenStats(*map(operator.add, _fields_of(self), _fields_of(other)))


_fields_of = operator.attrgetter(*(field.name for field in fields(TokenStats)))


class DemandStats:
    """Kept by the controller since its start. hits and misses: int64 [num_layers]; all_forecast_s: what
    forecasts for eviction took, forecast_s: of it where no wait for experts came after it.
    """

    __slots__ = (
        "all_forecast_s", "failed_prefetches", "forecast_s", "hits", "miss_bytes", "misses", "n_tokens", "promoted",
        "useful_prefetch_bytes", "wasted_prefetch_bytes",
    )  # fmt: skip

    def __init__(self, num_layers: int) -> None:
        self.hits = np.zeros(num_layers, np.int64)
        self.misses = np.zeros(num_layers, np.int64)
        self.n_tokens = 0
        self.promoted = 0
        self.miss_bytes = 0
        self.useful_prefetch_bytes = 0
        self.wasted_prefetch_bytes = 0
        self.failed_prefetches = 0
        self.forecast_s = 0.0
        self.all_forecast_s = 0.0

    def snapshot(self, transfers: TransferStats) -> TokenStats:
        """Sums so far; the difference of two is what happened in between."""
        return TokenStats(
            n_tokens=self.n_tokens,
            hits=int(self.hits.sum()),
            misses=int(self.misses.sum()),
            promoted=self.promoted,
            miss_bytes=self.miss_bytes,
            prefetch_bytes=transfers.prefetch_bytes,
            useful_prefetch_bytes=self.useful_prefetch_bytes,
            wasted_prefetch_bytes=self.wasted_prefetch_bytes,
            stall_ms=transfers.stall_s * 1e3,
        )
