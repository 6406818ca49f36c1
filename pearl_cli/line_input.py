"""Where the REPL's lines come from: an editable prompt on a terminal, plain lines from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol


class LineInput(Protocol):
    interactive: bool

    def read(self) -> str:
        """The next line without its end. Raises EOFError at the end of input, KeyboardInterrupt on Ctrl-C."""
        ...


class PipedInput:
    """Lines of a pipe or file; no prompt is shown. The last line needs no newline."""

    interactive = False

    def read(self) -> str:
        line = sys.stdin.readline() if sys.stdin and not sys.stdin.closed else ""
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


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
            "> ",
            history=history,
            completer=completer,
            complete_while_typing=False,
            output=create_output(stdout=sys.stderr),
        )

    def read(self) -> str:
        return self._session.prompt()


def open_line_input(commands: Iterable[str]) -> LineInput:
    """The editable prompt when both ends are terminals, else plain lines."""
    if sys.stdin and sys.stdin.isatty() and sys.stderr.isatty():
        return TerminalInput(commands, _history_file())
    return PipedInput()


def _history_file() -> Path | None:
    """`~/.cache/pearl/history` (or under XDG_CACHE_HOME); None where it cannot be written."""
    from pearl_cli.cache_dir import cache_dir

    folder = cache_dir()
    return folder / "history" if folder else None
