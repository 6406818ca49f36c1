"""What is measured of a model on a GPU: residency, eviction, fetching, steered routing; and that bits stay the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from pearl_cli.bench.record import make_record
from pearl_cli.bench.runner import Test, run_test
from pearl_cli.bench.workload import Workload
from pearl_cli.device import open_device
from pearl_cli.open_engine import open_engine
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.sizes import Size

SHARES = (100, 50, 25)
KEPT = (
    "model", "percent", "policy", "fetching", "median_ts", "itl_ms_p50", "itl_ms_p99", "hit_rate",
    "miss_bytes_per_token", "prefetch_bytes_per_token", "prefetch_precision", "prompt_ts", "open_s", "host_pinned",
    "vram_bytes", "host_expert_bytes", "device",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """policy: "lru" or "pearl" (evictions under exact routing) or "psr"; percent: of the experts that have a slot."""

    percent: int
    policy: str
    fetching: bool

    def options(self, base: RunOptions) -> RunOptions:
        budget = Size(percent=self.percent)
        if self.policy == "psr":  # what psr fetches ahead are its inserts
            return replace(
                base, budget=budget, evict="lru", predictor="none", routing="psr", lambda_="0.1",
                inserts=1 if self.fetching else 0,
            )  # fmt: skip
        predictor = "next-gate" if self.fetching else "auto" if self.policy == "pearl" else "none"
        return replace(base, budget=budget, evict=self.policy, predictor=predictor)


def cases() -> list[Case]:
    """With everything resident no policy has anything to do."""
    kinds = [(policy, fetching) for policy in ("lru", "pearl", "psr") for fetching in (False, True)]
    return [Case(SHARES[0], "lru", False), *(Case(percent, *kind) for percent in SHARES[1:] for kind in kinds)]


def measure_case(path: Path, case: Case, base: RunOptions, n_prompt: int, n_gen: int) -> dict[str, Any]:
    """One record: a warm run of `n_gen` tokens fed from a seed, after a run that compiles, records and fills slots."""
    started = time.perf_counter()
    with open_engine(path, case.options(base)) as opened:
        open_s = time.perf_counter() - started
        workload = Workload(opened.config.vocab_size, seed=1)
        decode, prompt = Test(0, n_gen, min(n_prompt, 8)), Test(n_prompt, 0)
        run_test(opened, decode, workload)
        run_test(opened, prompt, workload)
        prompt_ts = 1e9 * n_prompt / run_test(opened, prompt, workload).total_ns
        record = make_record(opened, decode, "warm", [run_test(opened, decode, workload)], workload)
    facts = {
        "model": path.parent.name if path.name.startswith("synth") else path.stem, "percent": case.percent,
        "policy": case.policy, "fetching": case.fetching, "prompt_ts": prompt_ts, "open_s": open_s,
    }  # fmt: skip
    return {name: {**record, **facts}.get(name) for name in KEPT}


def measure_until(
    models: list[Path], base: RunOptions, n_prompt: int, n_gen: int, time_is_up: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """A record each case, models in turn, so that a run cut short has some of each; a case that time did not allow is
    one with "left_out", and one that failed has a "fault".
    """
    for case in cases():
        for path in models:
            about = {"model": str(path), **case.__dict__}
            if time_is_up():
                yield {**about, "left_out": True}
                continue
            try:
                yield measure_case(path, case, base, n_prompt, n_gen)
            except Exception as error:
                yield {**about, "fault": f"{type(error).__name__}: {error}"}


def streaming_equals_resident(path: Path, base: RunOptions, n_prompt: int, n_gen: int) -> dict[str, Any]:
    """Logits of a prompt and of `n_gen` forced tokens: all resident against each share and policy of exact routing, bit
    for bit.
    """
    wanted = _logits(path, Case(100, "lru", False).options(base), n_prompt, n_gen)
    different = []
    exact = [case for case in cases() if case.policy != "psr" and case.percent < 100]
    for case in exact:
        got = _logits(path, case.options(base), n_prompt, n_gen)
        if not np.array_equal(got, wanted):
            different.append(f"{case.percent}% {case.policy}{' fetching' if case.fetching else ''}")
    finite = bool(np.isfinite(wanted).all())
    return {"model": path.stem, "from": "resident", "compared": len(exact), "different": different, "finite": finite}


def recorded_equals_single(path: Path, base: RunOptions, n_prompt: int, n_gen: int) -> dict[str, Any]:
    """Logits likewise, all resident: layers replayed as graphs against the same launches one by one."""
    options = Case(100, "lru", False).options(base)
    with mock.patch.object(open_device, "record_decoding", return_value=0):
        wanted = _logits(path, options, n_prompt, n_gen)
    same = np.array_equal(_logits(path, options, n_prompt, n_gen), wanted)
    different, finite = ([] if same else ["recorded decoding"]), bool(np.isfinite(wanted).all())
    return {"model": path.stem, "from": "single launches", "compared": 1, "different": different, "finite": finite}


def _logits(path: Path, options: RunOptions, n_prompt: int, n_gen: int) -> np.ndarray:
    with open_engine(path, options) as opened:
        workload = Workload(opened.config.vocab_size, seed=2)
        rows = [opened.engine.prefill(workload.prompt(n_prompt))]
        rows += [opened.engine.decode_step(token_id) for token_id in workload.continuation(n_gen)]
        return np.array(rows)


def warm_engine(path: Path, base: RunOptions) -> OpenedEngine:
    """An engine at half residency that has decoded already, for looking at one step; close it."""
    opened = open_engine(path, Case(50, "lru", True).options(base))
    opened.engine.prefill(Workload(opened.config.vocab_size, seed=1).prompt(8))
    for token_id in Workload(opened.config.vocab_size, seed=1).continuation(4):
        opened.engine.decode_step(token_id)
    return opened
