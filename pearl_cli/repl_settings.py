"""`/set`: sampling settings by their flag names, checked as the flags are."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from models.errors import UsageError
from pearl_cli.sampling import RANDOM_SEED, SamplingParams
from pearl_cli.sampling_options import SETTINGS


def show_settings(params: SamplingParams) -> str:
    """All settings on one line, as `/set` takes them."""
    shown = [f"{name} {getattr(params, field):g}" for name, (field, _) in SETTINGS.items()]
    seed = "random" if params.seed == RANDOM_SEED else str(params.seed)
    return f"{', '.join(shown)}, seed {seed}"


def change_setting(params: SamplingParams, name: str, value: str) -> SamplingParams:
    """`params` with one setting changed. Raises UsageError for an unknown name or a value out of range."""
    name = name.lstrip("-").replace("_", "-")
    if not value and (name in SETTINGS or name == "seed"):
        raise UsageError(f"/set {name} needs a value, e.g. /set temp 0.7; /set alone shows all")
    if name == "seed":
        return dataclasses.replace(params, seed=_convert(click.IntRange(-1, 2**32 - 1), name, value))
    if name not in SETTINGS:
        raise UsageError(f"there is no setting '{name}'; there are {', '.join(SETTINGS)}, seed")
    field, kind = SETTINGS[name]
    return dataclasses.replace(params, **{field: _convert(kind, name, value)})


def _convert(kind: click.ParamType[Any], name: str, value: str) -> Any:
    try:
        return kind.convert(value, None, None)
    except click.BadParameter as error:
        raise UsageError(f"/set {name}: {error.message}") from error
