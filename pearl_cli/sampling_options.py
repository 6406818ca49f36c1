"""Sampling flags, spelled and defaulted as in llama.cpp, gathered into `SamplingParams`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from pearl_cli.sampling import SamplingParams

_DEFAULTS = SamplingParams()
SETTINGS: dict[str, tuple[str, click.ParamType[Any]]] = {}
"""Flag name without dashes -> (field of SamplingParams, its type), for `/set`."""


def _flag(name: str, kind: click.ParamType[Any], field: str, text: str) -> Callable[..., Any]:
    SETTINGS[name.lstrip("-")] = (field, kind)
    return click.option(
        name, field, type=kind, default=getattr(_DEFAULTS, field), show_default=True, help=text, metavar="N"
    )


_FLAGS = [
    _flag("--temp", click.FloatRange(min=0), "temperature", "Temperature; 0 always takes the most likely token."),
    _flag("--top-k", click.IntRange(min=0), "top_k", "Keep the N most likely tokens; 0 keeps all."),
    _flag("--top-p", click.FloatRange(0, 1), "top_p", "Keep the smallest set with this much probability."),
    _flag("--min-p", click.FloatRange(0, 1), "min_p", "Drop tokens below this share of the best one's probability."),
    _flag(
        "--repeat-penalty", click.FloatRange(0, min_open=True), "repeat_penalty", "Divide the logits of seen tokens."
    ),
    _flag("--repeat-last-n", click.IntRange(min=-1), "repeat_last_n", "Tokens that penalties look back; -1: context."),
    _flag("--presence-penalty", click.FLOAT, "presence_penalty", "Subtract from the logits of tokens seen."),
    _flag("--frequency-penalty", click.FLOAT, "frequency_penalty", "Subtract once for each time a token was seen."),
]


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags; the command receives `sampling: SamplingParams`, with the seed of its `options: RunOptions`."""
    names = {field.name for field in fields(SamplingParams)} - {"seed", "logit_bias"}

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        own = {name: kwargs.pop(name) for name in list(kwargs) if name in names}
        return command(sampling=SamplingParams(**own, seed=kwargs["options"].seed), **kwargs)

    for flag in reversed(_FLAGS):
        wrapper = flag(wrapper)
    return wrapper
