"""The flags that say who chooses experts; shared by the run flags, `--compare` and `/routing`."""

from __future__ import annotations

import re
from typing import Any

import click

from pearl_cli.routing.steering import Steering, parse_steering
from pearl_cli.sizes import Size, SizeParam, parse_size

_LARGEST_LAMBDA = 1e6  # far beyond where the bonus decides alone, and a product with the scores' width is finite
ROUTINGS = ("exact", "cache-prior", "psr", "cache-prior-physical")


class LambdaParam(click.ParamType[str]):
    """A factor from 0 on, or `auto:PRICE%`: kept as text, checked here."""

    name = "X|auto:PCT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        match = re.fullmatch(r"(?:auto:([0-9]*\.?[0-9]+)%|([0-9]*\.?[0-9]+))", str(value))
        if match is None or float(match[1] or match[2]) > _LARGEST_LAMBDA:
            self.fail(
                f"'{value}' is no bonus factor; write a number from 0 to {_LARGEST_LAMBDA:,.0f}, such as 0.1, or "
                "auto:0.3% for a price in perplexity",
                param,
                ctx,
            )
        return str(value)


class InsertsParam(click.ParamType["int | str"]):
    """A number of experts, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if str(value) == "auto":
            return "auto"
        if not str(value).isdecimal():
            self.fail(f"'{value}' is no number of experts; write 0, 1, 2 .. or auto", param, ctx)
        return int(value)


class ResidencyParam(SizeParam):
    """A share of a layer's experts."""

    name = "PCT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Size:
        if isinstance(value, Size):
            return value
        try:
            size = parse_size(str(value), self.allow_percent)
        except ValueError:
            size = Size()
        if not size.percent:
            self.fail(f"'{value}' is no share of the experts; write above 0% and up to 100%, such as 25%", param, ctx)
        return size


def _steering(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Steering | None:
    """All --steer of a command line as one; None without any. What the published description of psr leaves open."""
    try:
        return parse_steering(",".join(texts)) if texts else None
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


ROUTING_FLAGS = [
    click.option(
        "--routing",
        type=click.Choice(ROUTINGS),
        default="exact",
        show_default=True,
        help="Who chooses experts: the model alone, or with a bonus for experts in a logical cache (cache-prior) that "
        "psr also stocks ahead; cache-prior-physical goes by the slots and is not deterministic.",
    ),
    click.option(
        "--lambda",
        "lambda_",
        type=LambdaParam(),
        help="Bonus, in widths of the router's scores; auto:0.3% is the strongest within that price in perplexity, as "
        "pearl eval found it.  [default: 0.1]",
    ),
    click.option(
        "--top-j", type=click.IntRange(min=0), metavar="J", help="First choices that also have the bonus.  [default: 1]"
    ),
    click.option(
        "--inserts",
        type=InsertsParam(),
        help="Experts that the next layer's router may put into its cache, a layer and token; auto measures.  "
        "[default: 1]",
    ),
    click.option(
        "--steer",
        metavar="KEY=VALUE,...",
        multiple=True,
        callback=_steering,
        help="For experiments: top-m, recency, refresh, bonus, smoothing, norm, e.g. top-m=8,recency=last-use; "
        "repeatable.",
    ),
    click.option(
        "--residency",
        type=ResidencyParam(allow_percent=True),
        metavar="PCT",
        help="Share of a layer's experts that the logical cache holds.  [default: what the slots hold]",
    ),
]
