"""`pearl bench --price TEXT`: what the routing that was timed costs in perplexity, for the same records.

Exact routing and the timed one score the same windows on the engine as it is open, so a logical cache that is what the
slots hold is priced as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from models.errors import UsageError
from pearl_cli.evaluate.evaluation import DEFAULT_CONTEXT, EvalRequest, evaluate
from pearl_cli.evaluate.text_ids import ids_of
from pearl_cli.routing.settings import RoutingSettings
from pearl_cli.session import Session
from pearl_cli.terminal import Progress

_WINDOWS = 8


def price_ids(session: Session, texts: Iterable[tuple[str, Any]]) -> list[int]:
    """The ids of `texts`; to be asked before anything is measured. Raises UsageError for exact routing, and for texts
    shorter than a window.
    """
    if session.opened.routing.exact:
        raise UsageError("--price: exact routing costs nothing; add --routing psr or cache-prior, or leave it out")
    ids, length = ids_of(texts, session.tokenizer, session.opened.gguf.metadata), _window(session)
    if len(ids) < length:
        raise UsageError(f"--price: the text has {len(ids)} tokens, fewer than one window of {length}: give more")
    return ids


def _window(session: Session) -> int:
    return min(DEFAULT_CONTEXT, session.engine.context)


def routing_price(session: Session, file: str, ids: Sequence[int]) -> dict[str, Any]:
    """Fields for every record: the settings' figures of `pearl eval` on `ids`, of the texts of `file`, over at most 8
    windows.
    """
    settings = session.opened.routing
    request = EvalRequest([RoutingSettings(), settings], windows=_WINDOWS, length=_window(session))
    progress = Progress(session.terminal, f"price of {settings.name}")
    (_, result), windows = evaluate(session, ids, request, progress)
    session.terminal.end_progress()
    figures = result.record()
    names = ("perplexity", "perplexity_price", "kl_divergence", "top1_agreement", "route_agreement")
    return {"price_text": file, "price_windows": len(windows), **{name: figures[name] for name in names}}
