"""Where the REPL's lines come from: an editable prompt on a terminal, plain lines from a pipe or a dumb terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from pearl_cli.terminal import is_dumb

_PROMPT, _CONTINUED = "> ", ". "


class LineInput(Protocol):
    interactive: bool

    def read(self, continued: bool = False) -> str:
        """The next line without its end. `continued`: it goes on with the one before. Raises EOFError at the end of
        input, KeyboardInterrupt on Ctrl-C.
        """
        ...


def read_message(lines: LineInput) -> str:
    """The next line with those that it is continued in: a backslash at the end of a line joins the next one to it, with
    a newline between. Raises as `LineInput.read`.
    """
    parts = [lines.read()]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        try:
            parts.append(lines.read(continued=True))
        except EOFError:
            break
    return "\n".join(parts)


class PipedInput:
    """Lines of a pipe or file; no prompt is shown. The last line needs no newline."""

    interactive = False

    def read(self, continued: bool = False) -> str:
        line = sys.stdin.readline() if sys.stdin and not sys.stdin.closed else ""
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


class DumbTerminalInput(PipedInput):
    """A prompt on stderr and whatever editing the terminal itself has, for one that knows no escape sequences."""

    interactive = True

    def read(self, continued: bool = False) -> str:
        print(_CONTINUED if continued else _PROMPT, end="", file=sys.stderr, flush=True)
        try:
            return super().read()
        except EOFError:
            print(file=sys.stderr)
            raise


class TerminalInput:
    """An editable line with history over sessions and completion of the slash commands."""

    interactive = True

    def __init__(self, commands: Iterable[str], history_file: Path | None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.output import create_output

        history = FileHistory(str(history_file)) if history_file else InMemoryHistory()
        completer = WordCompleter(list(commands), sentence=True)
        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=completer,
            complete_while_typing=False,
            output=create_output(stdout=sys.stderr),
        )

    def read(self, continued: bool = False) -> str:
        return self._session.prompt(_CONTINUED if continued else _PROMPT)


def open_line_input(commands: Iterable[str]) -> LineInput:
    """The editable prompt when both ends are terminals, else plain lines."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return PipedInput()
    return DumbTerminalInput() if is_dumb() else TerminalInput(commands, _history_file())


def _history_file() -> Path | None:
    """`~/.cache/pearl/history` (or under XDG_CACHE_HOME); None where it cannot be written."""
    from pearl_cli.cache_dir import cache_dir

    folder = cache_dir()
    return folder / "history" if folder else None
