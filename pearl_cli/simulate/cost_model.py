"""What a replay would have cost in time: one token after the other, one layer after the other, one link.

A layer computes up to its gate; then whatever it misses is read, latency once, then bytes over bandwidth, while the
experts already there are computed (`expert_s` each), then each of those read once its matrices are there: gate and up
after two thirds of its bytes, down after all. What the computing thread waits in between is the stall. When demands are
read the link is free for forecasts, one expert after the other; a demand overtakes them at the border of a chunk (a
third of an expert), as in the runtime. With `expert_s` 0 nothing hides behind a layer's own experts: an upper bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pearl_cli.predict.base import Forecast
from pearl_cli.residency.prefetch_governor import PrefetchGovernor
from pearl_cli.residency.stats import TransferStats, share_used
from pearl_cli.trace import DECODE, Event

_CHUNKS = 3

Forecaster = Callable[[Event], Sequence[Forecast]]


@dataclass(frozen=True, slots=True)
class Machine:
    """bytes_per_s: of the link; latency_s: of one read; compute_s: of one layer of one token, of which expert_s is each
    of its experts.
    """

    bytes_per_s: float
    latency_s: float
    compute_s: float
    expert_s: float = 0.0


@dataclass(slots=True)
class _Read:
    layer: int
    expert: int
    n_bytes: int
    left_s: float


@dataclass(slots=True)
class CostModel:
    """Handed to a replay as its `watch`. depth: forecast experts a later layer at most; governed: fetch only what pays.

    token_s: of each decoded token; demand_bytes, prefetch_bytes, useful_bytes, wasted_bytes and stall_s count decoding
    only. switched_off: what the governor said, where fetching is off at the end.
    """

    machine: Machine
    expert_bytes: Sequence[int]
    forecaster: Forecaster | None = None
    depth: int = 0
    governed: bool = True
    token_s: list[float] = field(default_factory=list)
    demand_bytes: int = 0
    prefetch_bytes: int = 0
    useful_bytes: int = 0
    wasted_bytes: int = 0
    stall_s: float = 0.0
    switched_off: str = ""
    _clock_s: float = 0.0
    _token: tuple[int, int, int] = (-1, -1, -1)
    _landed: dict[tuple[int, int], int] = field(default_factory=dict)
    _queue: deque[_Read] = field(default_factory=deque)
    _resident: dict[int, np.ndarray] = field(default_factory=dict)
    _stats: TransferStats = field(default_factory=TransferStats)
    _governor: PrefetchGovernor | None = None

    def __post_init__(self) -> None:
        self._governor = PrefetchGovernor(now=lambda: self._clock_s)

    def __call__(self, event: Event, missing: np.ndarray, resident: np.ndarray) -> None:
        """One event: what it misses of `resident` (bool [E], before it)."""
        decode = event.phase == DECODE
        self._begin_token(event, decode)
        started = self._clock_s
        experts_s = min(event.expert_ids.size * self.machine.expert_s, self.machine.compute_s)
        self._advance(self.machine.compute_s - experts_s)
        landing_s = self._demand(event, missing, decode)
        self._resident[event.layer] = resident
        if decode and self.forecaster is not None:
            self._queue_forecasts(event)
        took_s = self._compute_experts(experts_s, event.expert_ids.size, landing_s)
        stall_s = took_s - experts_s
        link_s = landing_s[-1] if landing_s else 0.0
        self._clock_s += link_s
        self._advance(took_s - link_s)
        if decode:
            self.stall_s += stall_s
            self.token_s[-1] += self._clock_s - started

    def figures(self) -> dict[str, float | int | str | None]:
        """Flat results for a record."""
        n = max(len(self.token_s), 1)
        times = np.array(self.token_s) * 1e3
        return {
            "demand_bytes_per_token": self.demand_bytes / n,
            "prefetch_bytes_per_token": self.prefetch_bytes / n,
            "prefetch_precision": share_used(self.useful_bytes, self.wasted_bytes),
            "prefetching_switched_off": self.switched_off or None,
            "stall_ms_per_token": 1e3 * self.stall_s / n,
            "token_ms_p50": float(np.percentile(times, 50)) if times.size else None,
            "token_ms_p99": float(np.percentile(times, 99)) if times.size else None,
            "tokens_per_s": 1e3 * len(times) / float(times.sum()) if times.size and times.sum() else None,
        }

    def _begin_token(self, event: Event, decode: bool) -> None:
        token = (event.turn, event.phase, event.step)
        if token == self._token:
            return
        self._token = token
        if decode:
            self.token_s.append(0.0)
        governor = self._governor
        assert governor is not None
        verdict = governor.observe_link(self._stats)
        if verdict is not None and self.governed:
            self.switched_off = "" if governor.enabled else verdict

    def _advance(self, seconds: float) -> None:
        """The computing thread is busy; the link works off forecasts."""
        self._clock_s += seconds
        while self._queue and seconds > 0:
            read = self._queue[0]
            done = min(seconds, read.left_s)
            read.left_s -= done
            seconds -= done
            self._stats.busy_s += done
            if read.left_s <= 1e-12:
                self._queue.popleft()
                self._landed[read.layer, read.expert] = read.n_bytes
                self._count_read(read.n_bytes)

    def _compute_experts(self, experts_s: float, n_experts: int, landing_s: Sequence[float]) -> float:
        """Seconds from the gate until all experts are computed. landing_s: when each missing one is there, ascending.
        """
        each_s = experts_s / max(n_experts, 1)
        done_s = (n_experts - len(landing_s)) * each_s
        before_s = 0.0
        for landed_s in landing_s:
            gate_up_s = landed_s - (landed_s - before_s) / _CHUNKS
            done_s = max(done_s, gate_up_s) + each_s * (_CHUNKS - 1) / _CHUNKS
            done_s = max(done_s, landed_s) + each_s / _CHUNKS
            before_s = landed_s
        return done_s

    def _count_read(self, n_bytes: int) -> None:
        self.prefetch_bytes += n_bytes
        self._stats.prefetch_bytes += n_bytes

    def _demand(self, event: Event, missing: np.ndarray, decode: bool) -> list[float]:
        """Read the missing experts, forecasts of this layer first: seconds from now when each has landed, ascending.
        Forecasts of this layer are settled; the link is busy until the last has landed.
        """
        size, machine = int(self.expert_bytes[event.layer]), self.machine
        wanted = set(missing.tolist())
        running = self._queue[0] if self._queue and self._begun(self._queue[0]) else None
        for expert in list(wanted):
            n_bytes = self._landed.pop((event.layer, expert), 0)
            if n_bytes:
                self._settle(n_bytes, useful=True)
                wanted.discard(expert)
        left_s: list[float] = []
        for read in [read for read in self._queue if read.layer == event.layer]:
            self._queue.remove(read)
            if read.expert in wanted:
                running = None if read is running else running
                wanted.discard(read.expert)
                left_s.append(read.left_s)
                self._count_read(read.n_bytes)
                self._settle(read.n_bytes, useful=True)
            elif self._begun(read):
                self._count_read(read.n_bytes)
                self._settle(read.n_bytes, useful=False)
        for key in [key for key in self._landed if key[0] == event.layer]:
            self._settle(self._landed.pop(key), useful=False)
        if wanted:
            left_s += [size / machine.bytes_per_s] * len(wanted)
            left_s[-len(wanted)] += machine.latency_s
            if decode:
                self.demand_bytes += len(wanted) * size
            self._stats.demand_bytes += len(wanted) * size
        if not left_s:
            return []
        left_s[0] += self._rest_of_chunk(running) if running is not None else 0.0
        landing_s: list[float] = np.cumsum(left_s).tolist()
        self._stats.busy_s += landing_s[-1]
        return landing_s

    def _begun(self, read: _Read) -> bool:
        return read.left_s < read.n_bytes / self.machine.bytes_per_s + self.machine.latency_s - 1e-12

    def _rest_of_chunk(self, read: _Read) -> float:
        """Seconds until the chunk of `read` that is being read ends; that much of it is done then."""
        rest_s = read.left_s % (read.n_bytes / _CHUNKS / self.machine.bytes_per_s)
        read.left_s -= rest_s
        return rest_s

    def _settle(self, n_bytes: int, useful: bool) -> None:
        if useful:
            self.useful_bytes += n_bytes
        else:
            self.wasted_bytes += n_bytes
        assert self._governor is not None
        self._governor.settle(useful)

    def _queue_forecasts(self, event: Event) -> None:
        """Ask as the runtime's `Prefetcher` does."""
        governor = self._governor
        assert self.forecaster is not None
        assert governor is not None
        fetches = governor.enabled or not self.governed
        if not fetches and not governor.rehearsing:
            return
        if not fetches:
            governor.rehearse(event.layer, event.expert_ids)
        threshold = governor.threshold if self.governed else 0.0
        for forecast in self.forecaster(event):
            wanted = self._wanted(forecast, threshold)
            if not fetches:
                governor.rehearsal.expect(forecast.layer, wanted)
                continue
            n_bytes = int(self.expert_bytes[forecast.layer])
            left_s = self.machine.latency_s + n_bytes / self.machine.bytes_per_s
            self._queue += [_Read(forecast.layer, expert, n_bytes, left_s) for expert in wanted]

    def _wanted(self, forecast: Forecast, threshold: float) -> list[int]:
        """The likeliest experts beyond `threshold` that are neither here nor on their way."""
        resident = self._resident.get(forecast.layer)
        on_way = {read.expert for read in self._queue if read.layer == forecast.layer}
        likeliest = np.argsort(-forecast.scores, kind="stable")[: self.depth]
        return [
            expert
            for expert in likeliest[forecast.scores[likeliest] > threshold].tolist()
            if not (resident is not None and resident[expert])
            and expert not in on_way
            and (forecast.layer, expert) not in self._landed
        ]
