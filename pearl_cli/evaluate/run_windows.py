"""Run settings over windows and score every token.

Exact routing runs a window in chunks. As soon as one setting of a run is not exact, or counts what a logical cache
would miss, all settings run as a chat does, so that they differ in nothing else: what comes before the scored part is
read as a prompt (always exact; it fills the logical cache), then every scored position is one decode step with the true
token. Each window starts with an empty cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pearl_cli.evaluate.estimate import BLOCK_TOKENS
from pearl_cli.evaluate.token_scores import TokenScores, divergence, log_softmax
from pearl_cli.evaluate.windows import Window
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.routing.base import RoutingPolicy
from pearl_cli.routing.cache_prior import CachePriorRouting
from pearl_cli.routing.settings import RoutingSettings

SCORE_ROWS = 32  # rows turned into probabilities at a time, in float64
_BLOCKS_PER_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Logits float32 [n, V] of scored positions in order, and their routing counts int64 [n, 4] or None."""

    logits: np.ndarray
    routes: np.ndarray | None


def needs_decoding(settings: Sequence[RoutingSettings]) -> bool:
    """Whether these settings show only in decoding."""
    return any(not each.exact or each.residency is not None for each in settings)


def window_logits(
    opened: OpenedEngine, window: Window, decoding: bool, advance: Callable[[int], None] | None = None
) -> Rows:
    """One window under the routing that `opened` has now, from an empty context. advance(n) is told of tokens done."""
    opened.engine.reset()
    opened.policy.reset()
    parts = _decoded(opened, window) if decoding else _in_chunks(opened, window)
    logits, routes = [], []
    for n_tokens, rows, counts in parts:
        if rows is not None:
            logits.append(rows)
        if counts is not None:
            routes.append(counts)
        if advance is not None:
            advance(n_tokens)
    return Rows(np.concatenate(logits), np.stack(routes) if routes else None)


_Part = tuple[int, "np.ndarray | None", "np.ndarray | None"]


def _in_chunks(opened: OpenedEngine, window: Window) -> Iterator[_Part]:
    engine, ids = opened.engine, np.array(window.ids[:-1], np.int64)
    bounds = [*range(0, len(ids), engine.chunk_tokens), len(ids)]
    for start, end in itertools.pairwise(bounds):
        which = "all" if end > window.first else "none"
        rows = engine.model.forward(ids[start:end], engine.cache, engine.provider, "prefill", which)
        yield end - start, rows[max(0, window.first - start) :].copy() if rows is not None else None, None


def _decoded(opened: OpenedEngine, window: Window) -> Iterator[_Part]:
    engine, policy = opened.engine, opened.policy
    if window.first:
        engine.prefill(window.ids[: window.first])
        yield window.first, None, None
    counts = policy.counts if isinstance(policy, CachePriorRouting) else None
    for token_id in window.ids[window.first : -1]:
        before = np.array(counts.values()) if counts is not None else None
        row = engine.decode_step(token_id)
        yield 1, row[None].copy(), np.array(counts.values()) - before if counts is not None else None


def score_rows(window: Window, number: int, rows: Rows, base: np.ndarray | None) -> TokenScores:
    """Scores of window `number`; base: logits [n, V] that divergence and agreement are against."""
    n = len(rows.logits)
    targets = np.array(window.ids[window.first + 1 :])
    blocks = number * _BLOCKS_PER_WINDOW + np.arange(n) // BLOCK_TOKENS
    nll, kld = np.empty(n), np.empty(n) if base is not None else None
    for start in range(0, n, SCORE_ROWS):
        part = slice(start, min(start + SCORE_ROWS, n))
        log = log_softmax(rows.logits[part])
        nll[part] = -log[np.arange(len(log)), targets[part]]
        if base is not None and kld is not None:
            kld[part] = divergence(log_softmax(base[part]), log)
    same_top = rows.logits.argmax(axis=-1) == base.argmax(axis=-1) if base is not None else None
    return TokenScores(nll, kld, same_top, rows.routes, blocks)


def run_settings(
    opened: OpenedEngine,
    windows: Sequence[Window],
    settings: Sequence[RoutingSettings],
    policies: Sequence[RoutingPolicy],
    base: np.ndarray | None = None,
    keep: Callable[[np.ndarray], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[TokenScores]:
    """Scores of each setting over all windows, window by window so that only one window's logits are in memory;
    policies: of `OpenedEngine.routing_for`, one a setting.

    base: saved logits of all scored positions, else the first setting is what the others diverge from. keep(logits)
    is handed the first setting's, window by window. Leaves the last setting routed.
    """
    decoding = needs_decoding(settings)
    parts: list[list[TokenScores]] = [[] for _ in settings]
    done, total = 0, len(settings) * sum(len(window.ids) - 1 for window in windows)

    def advance(n_tokens: int) -> None:
        nonlocal done
        done += n_tokens
        if progress is not None:
            progress(done, total)

    row = 0
    for number, window in enumerate(windows):
        against = base[row : row + window.n_scored] if base is not None else None
        for index, each in enumerate(settings):
            opened.route_by(each, policies[index])
            rows = window_logits(opened, window, decoding, advance)
            parts[index].append(score_rows(window, number, rows, against))
            if index == 0 and keep is not None:
                keep(rows.logits)
            if index == 0 and against is None and len(settings) > 1:
                against = rows.logits
        row += window.n_scored
    return [TokenScores.join(each) for each in parts]
