"""Routing flags inside one text: `--compare "--routing psr --lambda .1"`, and `/routing psr --lambda .1` in a chat."""

from __future__ import annotations

import dataclasses
import shlex

import click

from models.errors import UsageError
from pearl_cli.options import EVICTIONS, RunOptions
from pearl_cli.routing.settings import RoutingSettings, routing_settings
from pearl_cli.routing_options import ROUTING_FLAGS, ROUTINGS


@click.command(name="routing", add_help_option=False)
@click.option("--evict", type=click.Choice(EVICTIONS))
def _flags() -> None:
    """Only parsed, never run."""


for _flag in ROUTING_FLAGS:
    _flag(_flags)


_WHAT_CAN_BE_WRITTEN = (
    f"write one of {', '.join(ROUTINGS)} and then, as on the command line, "
    f"{', '.join(flag.opts[0] for flag in _flags.params if flag.opts[0] != '--routing')}: psr --lambda 0.1 --inserts 1"
)


def parse_routing(text: str, options: RunOptions, where: str, simulated: bool = False) -> RoutingSettings:
    """The setting that `text` names; --residency and --evict are those of `options` unless given. A first word that is
    no flag is the policy. `simulated`: see `routing_settings`. Raises UsageError that begins with `where`.
    """
    try:
        words = shlex.split(text)
        if words and not words[0].startswith("-"):
            words.insert(0, "--routing")
        with _flags.make_context(where, words) as context:
            given = dict(context.params)
    except (click.UsageError, ValueError) as error:
        reason = error.format_message() if isinstance(error, click.UsageError) else str(error)
        raise UsageError(f"{where} '{text}': {reason.rstrip('.')}; {_WHAT_CAN_BE_WRITTEN}") from error
    exact = given["routing"] == "exact" and not simulated
    for name in ("residency", "evict"):
        if given[name] is None and not (exact and name == "residency"):
            given[name] = getattr(options, name)
    return routing_settings(dataclasses.replace(options, **given), simulated)
