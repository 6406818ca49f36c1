"""Talk to a model. Without -m, to the one that ships inside pearl.

Replies go to stdout, everything else to stderr; input may be piped, one turn a line. /help lists what the prompt
understands.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from models.errors import UsageError
from pearl_cli.escapes import escape_option, text_or_file, typed_text
from pearl_cli.flag_files import NamedFile
from pearl_cli.foreign_flags import answers_foreign_flags
from pearl_cli.options import RunOptions, StopText, run_options
from pearl_cli.sampling_options import SamplingFlags, sampling_options

_KWARGS_EXAMPLE = """'{"enable_thinking": false}'"""
_OWN_VARIABLES = {"messages", "add_generation_prompt", "self", "tokenizer"}


@answers_foreign_flags
@click.command(name="chat", help=__doc__)
@run_options
@click.option("-p", "--prompt", help="First message; the session goes on after the reply unless --single-turn.")
@click.option("-f", "--file", type=NamedFile(), help="First message from a file.")
@click.option("-sys", "--system-prompt", default="", help="System text.")
@click.option("-sysf", "--system-prompt-file", type=NamedFile(), help="System text from a file.")
@click.option("-st", "--single-turn", is_flag=True, help="Leave after the first reply.")
@click.option("-n", "--predict", "--n-predict", type=click.IntRange(min=-1), default=-1, show_default=True, metavar="N",
              help="Most tokens of a reply; -1 has no limit.")  # fmt: skip
@click.option("-r", "--reverse-prompt", type=StopText(), multiple=True, metavar="TEXT",
              help="Stop a reply at this text; repeatable.")  # fmt: skip
@escape_option
@click.option("--chat-template", metavar="TEXT", help="A jinja2 template instead of the model's.")
@click.option("--chat-template-file", "--template", type=NamedFile(), help="The same, from a file.")
@click.option("--chat-template-kwargs", metavar="JSON", help="Further template variables, as a JSON object.")
@click.option("-co", "--color", type=click.Choice(["on", "off", "auto"]), default="auto", show_default=True)
@click.option("--show-timings/--no-show-timings", default=None,
              help="A line of timings after each reply.  [default: on a terminal]")  # fmt: skip
@sampling_options
def command(
    options: RunOptions,
    sampling: SamplingFlags,
    prompt: str | None,
    file: Path | None,
    system_prompt: str,
    system_prompt_file: Path | None,
    single_turn: bool,
    predict: int,
    reverse_prompt: tuple[str, ...],
    escape: bool | None,
    chat_template: str | None,
    chat_template_file: Path | None,
    chat_template_kwargs: str | None,
    color: str,
    show_timings: bool | None,
) -> int:
    from models.chat_template import ChatTemplate
    from pearl_cli.chat import Chat
    from pearl_cli.flag_files import file_of
    from pearl_cli.repl import Repl
    from pearl_cli.session import open_session
    from pearl_cli.terminal import Terminal
    from pearl_cli.text_file import read_text

    for text, text_file, names in (
        (prompt, file, "-p TEXT or -f FILE"),
        (system_prompt or None, system_prompt_file, "-sys TEXT or -sysf FILE"),
        (chat_template, chat_template_file, "--chat-template TEXT or --chat-template-file FILE"),
    ):
        if text is not None and text_file is not None:
            raise UsageError(f"give one of the two: {names}")
    system = text_or_file("-sys", system_prompt, "-sysf", system_prompt_file, escape) or ""
    first = text_or_file("-p", prompt, "-f", file, escape)
    stops = [typed_text("-r", stop, escape) for stop in reverse_prompt]
    if single_turn and first is None and sys.stdin.isatty():
        raise UsageError("--single-turn needs a message: give -p TEXT or -f FILE, or pipe one in")
    terminal = Terminal(color)
    with file_of("--chat-template-file"):
        override = read_text(chat_template_file) if chat_template_file is not None else chat_template
    variables = _template_variables(chat_template_kwargs)
    with open_session(options, terminal) as session:
        template = ChatTemplate.from_metadata(session.opened.gguf.metadata, session.tokenizer, override)
        params = sampling.for_model(session.opened.gguf.metadata)
        chat = Chat(session, template, params, predict, stops, variables)
        chat.conversation.system = system
        repl = Repl(chat, terminal.err_is_tty if show_timings is None else show_timings)
        if repl.interactive and not single_turn:
            terminal.note(f"{session.name}: {_about(session.opened)}; seed {chat.params.seed}; /help for commands")
        if first is not None:
            repl.ask(first)
            if single_turn or not repl.interactive:
                return 0
        return repl.run(single_turn)


def _template_variables(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--chat-template-kwargs is not JSON ({error}); write {_KWARGS_EXAMPLE}") from error
    if not isinstance(variables, dict):
        raise UsageError(f"--chat-template-kwargs must be a JSON object; write {_KWARGS_EXAMPLE}")
    for name in sorted(_OWN_VARIABLES & variables.keys()):
        raise UsageError(f"--chat-template-kwargs: '{name}' is given to the template by pearl itself; leave it out")
    return variables


def _about(opened: Any) -> str:
    fit, total = opened.experts_held
    held = f"all {total} experts in memory" if opened.plan.all_resident else f"{fit} of {total} experts fit in memory"
    return f"{opened.config.architecture}, {held}"
