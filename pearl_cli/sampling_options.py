"""Sampling flags, spelled and defaulted as in llama.cpp, gathered into `SamplingParams`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import click
from click.core import ParameterSource

from models.errors import GGUFError, UsageError
from pearl_cli.sampling import MOST_PENALTY, REPEAT_PENALTIES, SamplingParams

_DEFAULTS = SamplingParams()
SETTINGS: dict[str, tuple[str, click.ParamType[Any]]] = {}
"""Flag name without dashes -> (field of SamplingParams, its type), for `/set`."""


def _flag(names: str, kind: click.ParamType[Any], field: str, text: str) -> Callable[..., Any]:
    spelled = names.split()
    SETTINGS[spelled[0].lstrip("-")] = (field, kind)
    return click.option(
        *spelled, field, type=kind, default=getattr(_DEFAULTS, field), show_default=True, help=text, metavar="N"
    )


_PENALTY = click.FloatRange(-MOST_PENALTY, MOST_PENALTY)
_FLAGS = [
    _flag(
        "--temp --temperature",
        click.FloatRange(min=0),
        "temperature",
        "Temperature; 0 always takes the most likely token.",
    ),
    _flag("--top-k", click.IntRange(min=0), "top_k", "Keep the N most likely tokens; 0 keeps all."),
    _flag("--top-p", click.FloatRange(0, 1), "top_p", "Keep the smallest set with this much probability."),
    _flag("--min-p", click.FloatRange(0, 1), "min_p", "Drop tokens below this share of the best one's probability."),
    _flag(
        "--repeat-penalty", click.FloatRange(*REPEAT_PENALTIES), "repeat_penalty", "Divide the logits of seen tokens."
    ),
    _flag("--repeat-last-n", click.IntRange(min=-1), "repeat_last_n", "Tokens that penalties look back; -1: context."),
    _flag("--presence-penalty", _PENALTY, "presence_penalty", "Subtract from the logits of tokens seen."),
    _flag("--frequency-penalty", _PENALTY, "frequency_penalty", "Subtract once for each time a token was seen."),
]


# What a model file may recommend: metadata key -> field, as llama.cpp reads it.
_RECOMMENDED = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """`params` from flags and defaults; `given`: the fields that the user set."""

    params: SamplingParams
    given: frozenset[str]

    def for_model(self, metadata: Mapping[str, Any]) -> SamplingParams:
        """What to sample with: the user's flags, then what the model's file recommends, then the defaults.

        Raises GGUFError for a recommendation that is none, which names the flag that goes before it.
        """
        params = self.params
        for key, field in _RECOMMENDED.items():
            if key in metadata and field not in self.given:
                params = _recommended(params, field, key, metadata[key])
        return params


def _recommended(params: SamplingParams, field: str, key: str, value: Any) -> SamplingParams:
    flag = next(f"--{name}" for name, (of, _) in SETTINGS.items() if of == field)
    kinds = (int,) if type(getattr(_DEFAULTS, field)) is int else (int, float)
    if type(value) in kinds:
        with suppress(UsageError):
            # below 0 all are kept, as in llama.cpp
            return dataclasses.replace(params, **{field: max(0, value) if field == "top_k" else value})
    raise GGUFError(f"the model's {key} is {value!r:.40}, which is no value for {flag}; give {flag} yourself")


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags; the command receives `sampling: SamplingFlags`, with the seed of its `options: RunOptions`."""
    names = {field.name for field in fields(SamplingParams)} - {"seed", "logit_bias"}

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        context = click.get_current_context()
        given = {name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        own = {name: kwargs.pop(name) for name in list(kwargs) if name in names}
        params = SamplingParams(**own, seed=kwargs["options"].seed)
        return command(sampling=SamplingFlags(params, frozenset(given)), **kwargs)

    for flag in reversed(_FLAGS):
        wrapper = flag(wrapper)
    return wrapper
