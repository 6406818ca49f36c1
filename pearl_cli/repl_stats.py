"""`/stats`: what the residency engine did so far, as a small table."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console
from rich.table import Table

from pearl_cli.opened_engine import OpenedEngine

_BAR, _WIDTH = 20, 78


def residency_table(opened: OpenedEngine, columns: int) -> str:
    """Per layer: slots held, hits, misses and hit rate; then totals over the session. In a terminal of few `columns`
    the bars are left out.
    """
    controller, totals = opened.controller, opened.controller.totals
    table = Table(box=None, pad_edge=False)
    has_bars = columns >= _WIDTH
    for heading in ("layer", "resident", *([""] if has_bars else []), "hits", "misses", "hit rate"):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for layer, state in enumerate(controller.layers):
        if state is None:
            continue
        hits, misses = int(controller.demand.hits[layer]), int(controller.demand.misses[layer])
        held, experts = int(np.count_nonzero(state.cache.resident)), state.num_experts
        filled = round(_BAR * held / experts)
        rate = f"{100 * hits / (hits + misses):.1f} %" if hits + misses else "-"
        bar = ["█" * filled + "░" * (_BAR - filled)] if has_bars else []
        table.add_row(str(layer), f"{held}/{experts}", *bar, str(hits), str(misses), rate)
    out = io.StringIO()
    Console(file=out, width=_WIDTH, force_terminal=False).print(table)
    tokens = max(totals.n_tokens, 1)
    rate = f"{100 * totals.hit_rate:.1f} %" if totals.hits + totals.misses else "-"
    return (
        f"{out.getvalue()}{totals.n_tokens} tokens, hit rate {rate}, "
        f"{totals.miss_bytes / tokens / 2**20:.2f} MiB demanded and {totals.prefetch_bytes / tokens / 2**20:.2f} MiB "
        f"prefetched a token, waited {totals.stall_ms / tokens:.2f} ms a token\n"
        f"evict {opened.evict}, slots {opened.plan.slots.n_bytes / 2**20:.1f} MiB, context used "
        f"{len(opened.engine.tokens)} of {opened.engine.context}"
        f"{_of_auto(opened)}"
    )


def _of_auto(opened: OpenedEngine) -> str:
    """What `--predictor auto` measured and chose, on a line of its own."""
    auto = opened.controller.auto
    if auto is None:
        return ""
    return f"\n{auto.verdict.line() if auto.verdict is not None else f'auto: {auto.stage.value}'}"
