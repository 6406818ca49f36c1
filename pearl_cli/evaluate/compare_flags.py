"""`--compare "--routing psr --lambda .1"`: flags of a second setting inside one argument."""

from __future__ import annotations

import dataclasses
import shlex

import click

from models.errors import UsageError
from pearl_cli.options import EVICTIONS, ROUTING_FLAGS, RunOptions
from pearl_cli.routing.settings import RoutingSettings, routing_settings


@click.command(name="--compare", add_help_option=False)
@click.option("--evict", type=click.Choice(EVICTIONS))
def _flags() -> None:
    """Only parsed, never run."""


for _flag in ROUTING_FLAGS:
    _flag(_flags)


def parse_compared(text: str, options: RunOptions) -> RoutingSettings:
    """The setting that `text` names; --residency and --evict are those of `options` unless given. Raises UsageError."""
    try:
        with _flags.make_context("--compare", shlex.split(text)) as context:
            given = dict(context.params)
    except (click.UsageError, ValueError) as error:
        reason = error.format_message() if isinstance(error, click.UsageError) else str(error)
        raise UsageError(f"--compare '{text}': {reason}") from error
    for name in ("residency", "evict"):
        if given[name] is None:
            given[name] = getattr(options, name)
    return routing_settings(dataclasses.replace(options, **given), simulated=True)
