"""`pearl bench --ablate`: the same decode test with single pieces switched off, runs of all variants in turn.

Every run opens the model anew, so that variants share no slots, profiles or learned state; each gives one cold sample
(slots empty) and one warm one after it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from models.errors import UsageError
from pearl_cli.bench.record import make_record
from pearl_cli.bench.runner import Sample, Test, run_test
from pearl_cli.bench.workload import Workload
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import EVICTIONS, RunOptions
from pearl_cli.predict.choose import AUTO, UNTRAINED, check_name
from pearl_cli.residency.eviction import POLICY_NAMES
from pearl_cli.routing_options import ROUTINGS
from pearl_cli.session import open_session
from pearl_cli.sizes import Size
from pearl_cli.terminal import Terminal
from pearl_cli.usage import without_idle_usage

ON_DEMAND = "on-demand"
COPY_PIECES = ("reorder", "preempt", "chunk", "merge")
_OFF = {"evict": "lru", "predictor": "none", "routing": "exact"}
PIECES = (*_OFF, AUTO, *COPY_PIECES)
_WARMUP_TOKENS = 8


def variants(options: RunOptions, names: str, floor_bytes: int = 0) -> dict[str, RunOptions]:
    """By label: "full" as asked, then the variants of `names`, parted by commas: a piece to switch off (`evict` means
    evict=lru, `predictor` none, `routing` exact), FLAG=VALUE, or FLAG=all for each value in turn; several together
    joined by +, so that evict=all+predictor=all is the table of both. floor_bytes: the least budget, which is
    evict=on-demand. Raises UsageError.
    """
    result = {"full": options}
    for name in filter(None, (part.strip() for part in names.split(","))):
        for terms in itertools.product(*(_values(options, term.strip()) for term in name.split("+"))):
            if ("evict", ON_DEMAND) in terms and any(flag == "predictor" and value != "none" for flag, value in terms):
                continue  # nothing is kept, so there is no place for a forecast
            label = " ".join(f"{flag}={value}" if value else f"no {flag}" for flag, value in terms)
            result[label] = _vary(options, terms, floor_bytes)
    return {label: without_idle_usage(varied) for label, varied in result.items()}


def _values(options: RunOptions, term: str) -> list[tuple[str, str]]:
    """(flag, value) pairs that one term stands for; value "" switches a piece of the copy engine off, or `auto`: what
    pays is then not found out while running, and all stays as it begins.
    """
    flag, _, value = term.partition("=")
    if flag in (AUTO, *COPY_PIECES) and not value:
        return [(flag, "")]
    if flag not in _OFF:
        raise UsageError(f"--ablate {term}: pieces are {', '.join(PIECES)}; or FLAG=VALUE of the first three")
    if value != "all" or flag == "routing":
        _check_value(term, flag, value or _OFF[flag])
        return [(flag, value or _OFF[flag])]
    if flag == "evict":
        names = [ON_DEMAND, *(name for name in POLICY_NAMES if name != "static" or options.usage is not None)]
    else:
        own = [options.predictor] if options.predictor not in ("auto", "none", *UNTRAINED) else []
        names = ["none", *UNTRAINED, *own]
    return [(flag, name) for name in names]


def _check_value(term: str, flag: str, value: str) -> None:
    """Raises UsageError before a run rather than between two of them."""
    if flag == "predictor":
        check_name(value)
        return
    names = (*EVICTIONS, ON_DEMAND) if flag == "evict" else ROUTINGS
    if value not in names:
        raise UsageError(f"--ablate {term}: '{value}' is no --{flag}; write one of {', '.join(names)}")


def _vary(options: RunOptions, terms: tuple[tuple[str, str], ...], floor_bytes: int) -> RunOptions:
    """`options` with these flags changed, and with them what would contradict them."""
    changes: dict[str, Any] = {flag: value for flag, value in terms if value}
    off = tuple(flag for flag, value in terms if not value)
    if changes.get("evict") == ON_DEMAND:
        changes |= {"evict": "lru", "predictor": "none", "budget": Size(n_bytes=floor_bytes)}
    if changes.get("routing") == "exact":
        changes |= {"lambda_": None, "top_j": None, "inserts": None, "residency": None, "steer": None}
    varied = dataclasses.replace(options, switched_off=(*options.switched_off, *off), **changes)
    if (varied.evict, varied.predictor) != ("pearl", "none"):
        return varied
    # pearl evicts by a forecast: asked for by name, it keeps one and fetches nothing; else another policy steps in
    if "evict" in changes:
        return dataclasses.replace(varied, predictor="auto", switched_off=(*varied.switched_off, AUTO))
    return dataclasses.replace(varied, evict="auto")


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
