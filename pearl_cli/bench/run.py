"""All records of one `pearl bench`: tests in order, then what was asked for beside them: timeline, price, ablations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from models.errors import UsageError
from pearl_cli.bench.ablate import ablate, variants
from pearl_cli.bench.measure import measure
from pearl_cli.bench.peer import LlamaBench
from pearl_cli.bench.price import price_ids, routing_price
from pearl_cli.bench.request import BenchRequest
from pearl_cli.bench.workload import Workload
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.session import Session, open_session
from pearl_cli.terminal import Terminal
from pearl_cli.timeline import trace_decoding
from pearl_cli.usage import without_idle_usage


def run_bench(
    options: RunOptions, request: BenchRequest, terminal: Terminal, show: Callable[[list[dict[str, Any]]], None]
) -> None:
    """Open the model, measure, `show` the records, and close it; ablations open it anew for each run. What can fail
    comes before the measuring, or after they were shown. Raises UsageError, FileError, WriteFailure.
    """
    request.check(options)
    text, price_texts = request.text(), request.price_texts()
    first = options if request.ablate is None else without_idle_usage(options)
    with open_session(first, terminal, use_profile=False) as session:
        opened, seed = session.opened, max(options.seed, 0)
        peer = _peer(request, opened)
        text_ids = session.tokenizer.encode(text) if text is not None else None
        workload = Workload(opened.config.vocab_size, seed, text_ids, request.force_text or text_ids is None)
        if text is None:
            terminal.note(f"random tokens, seed {seed}")
        priced_ids = price_ids(session, price_texts) if request.price is not None else []
        if request.ablate is None:
            records = _measured(session, request, workload, peer)
            if request.price is not None:
                priced = routing_price(session, str(request.price), priced_ids)
                records = [{**record, **priced} for record in records]
            show(records)
        if request.timeline is not None:
            terminal.note(trace_decoding(opened, workload, request.timeline))
        least_bytes = opened.plan.slots.floor_bytes
    if request.ablate is not None:
        chosen = variants(options, request.ablate, least_bytes)
        tests = request.tests()
        show([row for test in tests for row in ablate(chosen, test, workload, request.repetitions, terminal)])


def _peer(request: BenchRequest, opened: OpenedEngine) -> LlamaBench | None:
    if request.vs is None:
        return None
    if request.vs_model is None and opened.gguf.memory is not None:
        raise UsageError("--vs: a model in memory has no file for llama-bench to read; give one with --vs-model")
    return LlamaBench.from_flag(request.vs, request.vs_model or opened.gguf.paths[0], opened.threads)


def _measured(
    session: Session, request: BenchRequest, workload: Workload, peer: LlamaBench | None
) -> list[dict[str, Any]]:
    records = []
    for test in request.tests():
        # steered routing feeds back on itself when the model's own choices are fed: both figures, never a mean
        both = bool(test.n_gen) and not session.opened.routing.exact
        for fed in [replace(workload, teacher_forced=f) for f in (True, False)] if both else [workload]:
            records += measure(session.opened, test, fed, request.repetitions, peer, session.terminal)
    return records
