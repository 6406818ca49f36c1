"""Where text goes: replies to stdout, everything else to stderr; colours and progress only where a person is looking,
and only in a terminal that knows escape sequences.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TextIO

_COLOURS = {"user": "\x1b[1;32m", "reply": "", "note": "\x1b[2m", "warn": "\x1b[33m"}
_RESET = "\x1b[0m"


def is_dumb() -> bool:
    """Whether the terminal says that it knows no escape sequences."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


class Terminal:
    """Writes for one run. `color` is "on", "off" or "auto" (a terminal that is not dumb, without NO_COLOR)."""

    def __init__(self, color: str = "auto", out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.out_is_tty = self.out.isatty()
        self.err_is_tty = self.err.isatty()
        self.draws = self.err_is_tty and not is_dumb()
        self.color = color == "on" or (color == "auto" and self.draws and not os.environ.get("NO_COLOR"))
        self._progress_width = 0

    @property
    def columns(self) -> int:
        """Width of what is written to: of the terminal as it is now, 80 where there is none."""
        if not self.err_is_tty:
            return 80
        try:
            return os.get_terminal_size(self.err.fileno()).columns or 80
        except (OSError, ValueError):  # a stream of a test, or a terminal that is gone
            return shutil.get_terminal_size().columns

    def reply(self, text: str) -> None:
        """A piece of the model's text, shown at once."""
        if text:
            self.end_progress()
            self.out.write(text)
            self.out.flush()

    def thought(self, text: str) -> None:
        """A piece of what the model says to itself, shown at once on stderr."""
        if text:
            self.end_progress()
            self.err.write(f"{_COLOURS['note']}{text}{_RESET}" if self.color else text)
            self.err.flush()

    def newline(self) -> None:
        self.out.write("\n")
        self.out.flush()

    def note(self, text: str) -> None:
        """A line of information on stderr."""
        self._line("note", text)

    def warn(self, text: str) -> None:
        self._line("warn", f"warning: {text}")

    def _line(self, kind: str, text: str) -> None:
        self.end_progress()
        if self.color:
            text = f"{_COLOURS[kind]}{text}{_RESET}"
        print(text, file=self.err, flush=True)

    def progress(self, text: str) -> None:
        """Replace the progress line, cut to the terminal's width; nothing where lines cannot be replaced."""
        if not self.draws:
            return
        text = text[: self.columns - 1]
        self.err.write("\r" + text.ljust(self._progress_width))
        self.err.flush()
        self._progress_width = len(text)

    def end_progress(self) -> None:
        if self._progress_width:
            self.err.write("\r" + " " * self._progress_width + "\r")
            self.err.flush()
            self._progress_width = 0


class Progress:
    """A progress callback `(done, total)` that draws `label`, percent and the time left, at most ten times a second.

    Where lines cannot be replaced it prints the label once, so that a log shows what took the time.
    """

    def __init__(self, terminal: Terminal, label: str, min_seconds: float = 0.5) -> None:
        self.terminal = terminal
        self.label = label
        self.min_seconds = min_seconds
        self._started = time.monotonic()
        self._drawn = 0.0
        self._said = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        spent = now - self._started
        if spent < self.min_seconds or total <= 0:
            return
        if not self.terminal.draws:
            if not self._said:
                self.terminal.note(f"{self.label} ...")
                self._said = True
            return
        if now - self._drawn < 0.1 and done < total:
            return
        self._drawn = now
        left = spent * (total - done) / done if done else 0.0
        self.terminal.progress(f"{self.label} {100 * done // total:3d}%  {left:4.0f} s left")
        if done >= total:
            self.terminal.end_progress()
