"""`pearl eval --lambda auto:PRICE%`: the strongest bonus whose price stays within a limit on a text.

All factors of a grid score the same tokens as exact routing does. A factor is within the price where the upper end of
its price's 95 % interval is, so a short text allows less; the answer is the largest factor up to which all are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from models.errors import UsageError
from pearl_cli.evaluate.evaluation import EvalRequest, evaluate
from pearl_cli.routing.settings import RoutingSettings
from pearl_cli.session import Session

GRID = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)


def calibrate(
    session: Session, ids: Sequence[int], request: EvalRequest, progress: Callable[[int, int], None] | None = None
) -> RoutingSettings:
    """request.settings[0], whose lambda_ is open, with the factor found. Raises UsageError where even the weakest bonus
    is not shown to be within the price.
    """
    settings = request.settings[0]
    if settings.lambda_price is None:
        raise ValueError("nothing to calibrate")
    tried = [dataclasses.replace(settings, lambda_=factor) for factor in GRID]
    plain = dataclasses.replace(request, settings=[RoutingSettings(), *tried], logits=None, kld_base=None)
    (_, *results), _ = evaluate(session, ids, plain, progress)
    best = None
    for each, result in zip(tried, results, strict=True):
        price = result.price
        if price is None or not price.high <= settings.lambda_price:
            break
        best = each
    if best is None:
        raise UsageError(
            f"--lambda auto: the price of the weakest bonus ({GRID[0]:g}) is not shown to be within "
            f"{100 * settings.lambda_price:g}% on this text; allow more, or give a longer text"
        )
    return best
