"""One evaluation on an open session: token ids to windows, settings to results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from models.errors import UsageError
from pearl_cli.evaluate.logits_file import logits_writer, read_logits
from pearl_cli.evaluate.report import Result
from pearl_cli.evaluate.run_windows import SCORE_ROWS, run_settings
from pearl_cli.evaluate.windows import Window, cut_windows
from pearl_cli.flag_files import file_of
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.routing.settings import RoutingSettings
from pearl_cli.session import Session

DEFAULT_CONTEXT = 512  # llama-perplexity's


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """settings[0] is what the others are priced against; windows: at most so many, None for all of the text;
    length: of a window, None for the whole context.
    """

    settings: Sequence[RoutingSettings]
    scored: str = "half"
    windows: int | None = None
    length: int | None = None
    logits: Path | None = None
    kld_base: Path | None = None


def eval_bytes(context: int, vocab_size: int, chunk_tokens: int, scored: str, n_settings: int) -> int:
    """Memory beside the engine's: a window's logits (of two settings when they are compared), one chunk's as they come,
    and the probabilities of a few rows.
    """
    rows = (context if scored == "all" else context - context // 2) * min(n_settings, 2)
    return 4 * vocab_size * (rows + min(chunk_tokens, context)) + 8 * 6 * vocab_size * SCORE_ROWS


def evaluate(
    session: Session, ids: Sequence[int], request: EvalRequest, progress: Callable[[int, int], None] | None = None
) -> tuple[list[Result], list[Window]]:
    """Raises UsageError for a text too short, settings that mean nothing here, or base logits of another text."""
    opened, tokenizer = session.opened, session.tokenizer
    for settings in request.settings:
        check_residency(opened, settings)
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    length = request.length or opened.engine.context
    windows = cut_windows(ids, length, request.scored, bos_id)[: request.windows]
    shape = (sum(window.n_scored for window in windows), opened.config.vocab_size)
    with file_of("--kld-base"):
        base = read_logits(request.kld_base, shape) if request.kld_base is not None else None
    policies = [opened.routing_for(settings) for settings in request.settings]
    with logits_writer(request.logits, shape) if request.logits is not None else nullcontext() as keep:
        all_scores = run_settings(opened, windows, request.settings, policies, base, keep, progress)
    results: list[Result] = []
    for settings, policy, scores in zip(request.settings, policies, all_scores, strict=True):
        price = scores.price(all_scores[0]) if results else None
        evict = policy.logical.evict if policy.logical is not None else ""
        results.append(Result(settings, evict, scores, price))
    return results, windows


def check_residency(opened: OpenedEngine, settings: RoutingSettings) -> None:
    """Raises UsageError where the logical cache would hold everything, so that nothing could be seen."""
    if not settings.exact and settings.residency is None and opened.plan.all_resident:
        simulated = "--residency 25% to simulate a cache of that size, or " if settings.deterministic else ""
        raise UsageError(
            f"--routing {settings.name}: all experts are in memory, which is exact routing; give {simulated}a --budget"
        )
