"""Answers to llama.cpp's flags that a command of pearl does not have.

Without them click would read `-fa` as `-f a` and `-ngl 99` as `-n gl`. A flag that asks for what pearl does anyway is
taken with a line on stderr; any other is refused with what to type instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pearl_cli.llama_cpp_flags import FLAGS, ForeignFlag


def answers_foreign_flags(command: click.Command) -> click.Command:
    """Give `command` the hidden flags of its entries in the table, less the names that it has itself."""
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for flag in FLAGS:
        if command.name not in flag.commands:
            continue
        for name in flag.names.split():
            if name in own:
                raise ValueError(f"pearl {command.name} has {name} itself")
            command.params.append(_hidden_option(name, flag))
    return command


def _hidden_option(name: str, flag: ForeignFlag) -> click.Option:
    takes: dict[str, Any] = {"is_flag": True} if flag.takes == "" else {"type": str}
    if flag.takes == "V?":
        takes |= {"is_flag": False, "flag_value": "on"}
    place = "foreign_" + name.strip("-").replace("-", "_") + f"_{len(name) - len(name.lstrip('-'))}"
    return click.Option(
        [name, place], hidden=True, expose_value=False, is_eager=True, callback=_answer(name, flag), **takes
    )


def _answer(name: str, flag: ForeignFlag) -> Callable[[click.Context, click.Parameter, Any], None]:
    def answer(ctx: click.Context, _: click.Parameter, value: str | bool | None) -> None:
        if value is None or value is False or ctx.resilient_parsing:
            return
        text = "" if value is True else str(value)
        if text in flag.kept:
            click.echo(f"{name}: {flag.answer}", err=True)
            return
        written = f"{name} {text}".rstrip()
        raise click.UsageError(f"{written} is llama.cpp's; here {flag.answer}", ctx)

    return answer
