"""The REPL around a `Chat`: lines in, slash commands, and Ctrl-C that stops a reply but not the session."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from models.errors import ContextError, PearlError
from pearl_cli.chat import Chat
from pearl_cli.flag_files import file_of, typed_path
from pearl_cli.line_input import LineInput, open_line_input, read_message
from pearl_cli.repl_files import load_conversation, save_conversation
from pearl_cli.repl_routing import change_routing, show_routing
from pearl_cli.repl_settings import change_setting, show_settings
from pearl_cli.repl_stats import residency_table
from pearl_cli.terminal import Terminal
from pearl_cli.text_file import read_prompt

COMMANDS = {
    "/help": "show this list",
    "/clear": "forget the conversation",
    "/regen": "answer the last question again",
    "/system TEXT": "set the system text (without TEXT: show it) and forget the conversation",
    "/read FILE": "ask with the contents of a file",
    "/save FILE": "write the conversation to a file",
    "/load FILE": "go on from a conversation that was saved",
    "/stats": "expert residency, hit rate, bytes and waiting so far",
    "/routing FLAGS": "change who chooses experts, e.g. psr --lambda 0.1, or exact (without FLAGS: show it)",
    "/set NAME VALUE": "change a sampling setting (without NAME: show them all)",
    "/exit": "leave (also /quit, or end of input)",
}

_LINES = "A backslash at the end of a line continues it in the next; Ctrl-C stops a reply."


class Repl:
    """Runs until /exit, end of input, or a second Ctrl-C at an empty prompt."""

    def __init__(self, chat: Chat, show_timings: bool, lines: LineInput | None = None) -> None:
        self._chat = chat
        self._terminal: Terminal = chat.session.terminal
        self._show_timings = show_timings
        self._lines = lines or open_line_input(name.split()[0] for name in COMMANDS)
        self.interactive = self._lines.interactive
        self._done = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": self._help,
            "/clear": self._clear,
            "/regen": self._regen,
            "/system": self._system,
            "/read": self._read,
            "/save": self._save,
            "/load": self._load,
            "/stats": self._stats,
            "/routing": self._routing,
            "/set": self._set,
            "/exit": self._exit,
            "/quit": self._exit,
        }

    def run(self, single_turn: bool = False) -> int:
        """The exit code: 0, or 130 after Ctrl-C twice at the prompt. `single_turn` leaves after one line."""
        asked_to_leave = False
        while not self._done:
            try:
                line = read_message(self._lines)
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if asked_to_leave:
                    return 130
                asked_to_leave = True
                self._terminal.note("press Ctrl-C again, or type /exit, to leave")
                continue
            asked_to_leave = False
            if line.strip():
                self._handle(line)
                self._done = self._done or single_turn
        return 0

    def _handle(self, line: str) -> None:
        """A command, or a message: also one that begins with a space, whatever follows it."""
        try:
            line.encode()
        except UnicodeEncodeError as error:
            self._terminal.warn(f"this line was not sent: it is not UTF-8 text at character {error.start + 1}")
            return
        try:
            name, _, rest = line.rstrip().partition(" ")
            if name in self._commands:
                self._commands[name](rest.strip())
            elif line.startswith("/"):
                self._terminal.warn(f"{name} is no command; /help lists them, and a space before it makes it a message")
            else:
                self.ask(line.strip())
        except ContextError as error:
            self._terminal.warn(f"{error}, or /clear the conversation")
        except PearlError as error:
            self._terminal.warn(str(error))

    def ask(self, text: str) -> None:
        """One turn, with its timings where they are wanted."""
        self._after(self._chat.reply(text).line())

    def _after(self, timings: str) -> None:
        if self._show_timings:
            self._terminal.note(timings)

    def _help(self, _: str) -> None:
        self._terminal.note(help_text(self._terminal.columns))

    def _clear(self, _: str) -> None:
        self._chat.conversation.clear()
        self._terminal.note("the conversation is forgotten; resident experts stay")

    def _regen(self, _: str) -> None:
        stats = self._chat.regenerate()
        if stats is None:
            self._terminal.warn("there is no reply to make again")
        else:
            self._after(stats.line())

    def _system(self, text: str) -> None:
        if text:
            self._chat.conversation.system = text
            self._chat.conversation.clear()
            self._terminal.note("system text set; the conversation starts anew")
        else:
            self._terminal.note(self._chat.conversation.system or "no system text is set")

    def _read(self, name: str) -> None:
        if not name:
            self._terminal.warn("give a file: /read FILE")
            return
        with file_of("/read"):
            text = read_prompt(typed_path(name))
        self.ask(text)

    def _save(self, name: str) -> None:
        if not name:
            self._terminal.warn("give a file: /save FILE")
            return
        self._terminal.note(save_conversation(typed_path(name), self._chat.conversation))

    def _load(self, name: str) -> None:
        if not name:
            self._terminal.warn("give a file: /load FILE")
            return
        self._terminal.note(load_conversation(typed_path(name), self._chat.conversation))

    def _stats(self, _: str) -> None:
        self._terminal.note(residency_table(self._chat.session.opened, self._terminal.columns))

    def _routing(self, rest: str) -> None:
        opened = self._chat.session.opened
        self._terminal.note(change_routing(opened, rest) if rest else show_routing(opened))

    def _set(self, rest: str) -> None:
        if not rest:
            self._terminal.note(show_settings(self._chat.params))
            return
        name, _, value = rest.partition(" ")
        self._chat.params = change_setting(self._chat.params, name, value.strip())
        self._terminal.note(show_settings(self._chat.params))

    def _exit(self, _: str) -> None:
        self._done = True


def help_text(columns: int) -> str:
    """The commands and what a line means, wrapped to `columns`."""
    width = max(map(len, COMMANDS)) + 2
    if columns < 2 * width:
        width = 4
    lines: list[str] = []
    for name, text in COMMANDS.items():
        if width <= len(name):
            lines.append(name)
            name = ""
        wrapped = textwrap.wrap(text, columns - 1 - width)
        lines += [f"{name:<{width}}{wrapped[0]}", *(" " * width + rest for rest in wrapped[1:])]
    return "\n".join([*lines, *textwrap.wrap(_LINES, columns - 1)])
