"""`pearl bench --ablate`: the same decode test with single pieces switched off, runs of all variants in turn.

Every run opens the model anew, so that variants share no slots, profiles or learned state; each gives one cold sample
(slots empty) and one warm one after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from models.errors import UsageError
from pearl_cli.bench.record import make_record
from pearl_cli.bench.runner import Sample, Test, run_test
from pearl_cli.bench.workload import Workload
from pearl_cli.open_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.session import open_session
from pearl_cli.terminal import Terminal

COPY_PIECES = ("reorder", "preempt", "chunk")
_OFF = {"evict": "lru", "predictor": "none", "routing": "exact"}
PIECES = (*_OFF, *COPY_PIECES)
_WARMUP_TOKENS = 8


def variants(options: RunOptions, names: str) -> dict[str, RunOptions]:
    """By label: "full" as asked, then one variant a name: a piece to switch off (`evict` means evict=lru, `predictor`
    none, `routing` exact) or FLAG=VALUE. Raises UsageError.
    """
    result = {"full": options}
    for name in filter(None, (part.strip() for part in names.split(","))):
        flag, _, value = name.partition("=")
        if flag in COPY_PIECES and not value:
            result[f"no {flag}"] = dataclasses.replace(options, switched_off=(*options.switched_off, flag))
        elif flag in _OFF:
            value = value or _OFF[flag]
            changes: dict[str, Any] = {flag: value}
            if flag == "predictor" and value == "none" and options.evict == "pearl":
                changes["evict"] = "auto"
            if flag == "routing" and value == "exact":
                changes |= {"lambda_": None, "top_j": None, "inserts": None, "residency": None}
            result[f"{flag}={value}"] = dataclasses.replace(options, **changes)
        else:
            raise UsageError(f"--ablate {name}: pieces are {', '.join(PIECES)}; or FLAG=VALUE of the first three")
    return result


def ablate(
    chosen: dict[str, RunOptions], test: Test, workload: Workload, repetitions: int, terminal: Terminal
) -> list[dict[str, Any]]:
    """A cold and a warm record a variant, each with its label under `ablation`. Raises UsageError where everything is
    resident, because nothing is left to ablate.
    """
    samples: dict[tuple[str, str], list[Sample]] = {}
    records: list[dict[str, Any]] = []
    for number in range(repetitions):
        for label, options in chosen.items():
            terminal.progress(f"{test.name}: {label}, run {number + 1} of {repetitions}")
            with open_session(options, terminal, use_profile=False) as session:
                if session.opened.plan.all_resident:
                    raise UsageError("--ablate: every expert is in memory; give a --budget below 100%")
                for state, sample in zip(("cold", "warm"), _cold_and_warm(session.opened, test, workload), strict=True):
                    samples.setdefault((label, state), []).append(sample)
                if number + 1 == repetitions:
                    records += _records(session.opened, test, label, samples, workload)
    terminal.end_progress()
    return records


def _cold_and_warm(opened: OpenedEngine, test: Test, workload: Workload) -> list[Sample]:
    run_test(opened, Test(test.n_prompt, min(test.n_gen, _WARMUP_TOKENS)), workload)
    opened.controller.drop_residents()
    return [run_test(opened, test, workload), run_test(opened, test, workload)]


def _records(
    opened: OpenedEngine, test: Test, label: str, samples: dict[tuple[str, str], list[Sample]], workload: Workload
) -> Sequence[dict[str, Any]]:
    return [
        {"ablation": label, **make_record(opened, test, state, samples[label, state], workload)}
        for state in ("cold", "warm")
    ]
