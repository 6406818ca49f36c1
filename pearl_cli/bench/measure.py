"""The repetitions of one test: warm-up, cold run, warm runs, and the peer's turns in between."""

from __future__ import annotations

import statistics
from typing import Any

from models.errors import UsageError
from pearl_cli.bench.peer import LlamaBench
from pearl_cli.bench.record import make_record
from pearl_cli.bench.runner import Sample, Test, run_test
from pearl_cli.bench.workload import Workload
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.terminal import Terminal

_WARMUP_TOKENS = 8


def measure(
    opened: OpenedEngine, test: Test, workload: Workload, repetitions: int, peer: LlamaBench | None, terminal: Terminal
) -> list[dict[str, Any]]:
    """Records of `test`: one when all experts are resident, else a cold one and a warm one. Raises UsageError when it
    does not fit the context.
    """
    needed = test.n_depth + test.n_prompt + test.n_gen + 2
    if needed > opened.engine.context:
        raise UsageError(
            f"{test.name} needs a context of {needed} tokens; this run has {opened.engine.context}: raise -c (up to "
            f"{opened.engine.model.config.context_length}), or lower -p, -n or -d"
        )
    warmup = Test(test.n_prompt, min(test.n_gen, _WARMUP_TOKENS), 0)
    run_test(opened, warmup, workload)
    records = []
    state = "resident" if opened.plan.all_resident else "warm"
    if state == "warm":
        opened.controller.drop_residents()
        terminal.progress(f"{test.name}: cold run")
        records.append(make_record(opened, test, "cold", [run_test(opened, test, workload)], workload))
    samples: list[Sample] = []
    peer_speeds: list[float] = []
    for number in range(repetitions):
        terminal.progress(f"{test.name}: run {number + 1} of {repetitions}")
        samples.append(run_test(opened, test, workload))
        if peer is not None:
            terminal.progress(f"{test.name}: llama-bench, run {number + 1} of {repetitions}")
            peer_speeds.append(peer.run(test))
    terminal.end_progress()
    record = make_record(opened, test, state, samples, workload)
    if peer_speeds:
        record["peer"] = "llama.cpp"
        record["peer_samples_ts"] = peer_speeds
        record["peer_median_ts"] = statistics.median(peer_speeds)
        record["ratio_to_peer"] = record["median_ts"] / record["peer_median_ts"]
        terminal.note(
            f"{test.name}: pearl {record['median_ts']:.2f} t/s, llama.cpp {record['peer_median_ts']:.2f} t/s, "
            f"ratio {record['ratio_to_peer']:.2f} (medians of {repetitions}, in turn)"
        )
    records.append(record)
    return records
