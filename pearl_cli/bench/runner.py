"""Run one bench test on an open engine and time every token. Prints nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from pearl_cli.bench.workload import Workload
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.residency.stats import TokenStats


@dataclass(frozen=True, slots=True)
class Test:
    """A prompt of `n_prompt` tokens (then n_gen is 0), or `n_gen` decoded ones after `n_depth` tokens of context."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0

    @property
    def name(self) -> str:
        base = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return f"{base} @ d{self.n_depth}" if self.n_depth else base


@dataclass(slots=True)
class Sample:
    """One repetition. token_ns: time of each decoded token (one entry for a prompt); ids: the greedy choice at each."""

    total_ns: int
    ttft_ns: int
    token_ns: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    stats: TokenStats = field(default_factory=TokenStats)
    kernel_s: float = 0.0
    read_bytes: int = 0
    reads: int = 0
    read_busy_s: float = 0.0
    queue_wait_s: float = 0.0


def run_test(opened: OpenedEngine, test: Test, workload: Workload) -> Sample:
    """One repetition from an empty context; what is resident stays."""
    opened.engine.reset()
    opened.timing.time_kernels(True)
    try:
        return _run_prompt(opened, test, workload) if test.n_prompt else _run_decode(opened, test, workload)
    finally:
        opened.timing.time_kernels(False)


def _run_prompt(opened: OpenedEngine, test: Test, workload: Workload) -> Sample:
    engine = opened.engine
    if test.n_depth:
        engine.prefill(workload.prompt(test.n_depth))
    ids = workload.prompt(test.n_depth + test.n_prompt)
    before = _Counters(opened)
    start = time.perf_counter_ns()
    logits = engine.prefill(ids)
    elapsed = time.perf_counter_ns() - start
    sample = Sample(elapsed, elapsed, [elapsed], [int(np.argmax(logits))])
    before.fill(sample)
    return sample


def _run_decode(opened: OpenedEngine, test: Test, workload: Workload) -> Sample:
    """The first decoded token warms caches of the processor and is left out of the figures."""
    engine = opened.engine
    start = time.perf_counter_ns()
    logits = engine.prefill(workload.prompt(max(test.n_depth, 1)))
    ttft_ns = time.perf_counter_ns() - start
    forced = workload.continuation(test.n_gen + 1, after=max(test.n_depth, 1))
    sample = Sample(0, ttft_ns)
    counters = _Counters(opened)
    for index in range(test.n_gen + 1):
        token_id = forced[index] if workload.teacher_forced else int(np.argmax(logits))
        start = time.perf_counter_ns()
        logits = engine.decode_step(token_id)
        elapsed = time.perf_counter_ns() - start
        if index == 0:
            counters = _Counters(opened)
            continue
        sample.token_ns.append(elapsed)
        sample.ids.append(int(np.argmax(logits)))
    sample.total_ns = sum(sample.token_ns)
    counters.fill(sample)
    return sample


class _Counters:
    """The engine's sums at one moment; `fill` writes what was added since into a sample."""

    def __init__(self, opened: OpenedEngine) -> None:
        self._opened = opened
        self._totals = opened.controller.totals
        self._kernel_s = opened.timing.seconds_in_kernels
        transfers = opened.controller.queue.stats
        self._read_bytes = transfers.read_bytes
        self._reads = transfers.reads
        self._busy_s = transfers.busy_s
        self._queue_wait_s = transfers.queue_wait_s

    def fill(self, sample: Sample) -> None:
        now = _Counters(self._opened)
        sample.stats = now._totals - self._totals
        sample.kernel_s = now._kernel_s - self._kernel_s
        sample.read_bytes = now._read_bytes - self._read_bytes
        sample.reads = now._reads - self._reads
        sample.read_busy_s = now._busy_s - self._busy_s
        sample.queue_wait_s = now._queue_wait_s - self._queue_wait_s
