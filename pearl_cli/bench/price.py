"""`pearl bench --price TEXT`: what the routing that was timed costs in perplexity, for the same records.

Exact routing and the timed one score the same windows on the engine as it is open, so a logical cache that is what the
slots hold is priced as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from models.errors import UsageError
from pearl_cli.evaluate.evaluation import DEFAULT_CONTEXT, EvalRequest, evaluate
from pearl_cli.evaluate.text_ids import ids_of
from pearl_cli.routing.settings import RoutingSettings
from pearl_cli.session import Session
from pearl_cli.terminal import Progress

_WINDOWS = 8


def routing_price(session: Session, file: str, texts: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields for every record: the settings' figures of `pearl eval` on the texts of `file`, over at most 8 windows.
    Raises UsageError for exact routing, and for a text shorter than a window.
    """
    opened, settings = session.opened, session.opened.routing
    if settings.exact:
        raise UsageError("--price: exact routing costs nothing; add --routing psr or cache-prior, or leave it out")
    length = min(DEFAULT_CONTEXT, opened.engine.context)
    ids = ids_of(texts, session.tokenizer, opened.gguf.metadata)
    request = EvalRequest([RoutingSettings(), settings], windows=_WINDOWS, length=length)
    progress = Progress(session.terminal, f"price of {settings.name}")
    (_, result), windows = evaluate(session, ids, request, progress)
    session.terminal.end_progress()
    figures = result.record()
    names = ("perplexity", "perplexity_price", "kl_divergence", "top1_agreement", "route_agreement")
    return {"price_text": file, "price_windows": len(windows), **{name: figures[name] for name in names}}
