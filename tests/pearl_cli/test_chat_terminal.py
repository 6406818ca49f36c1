"""`pearl chat` in a real terminal, dumb and not: Ctrl-C, Ctrl-D, continued and pasted lines, narrow screens, no colour.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pearl_cli.pty_session import PtySession, plain

SLOW = ["--throttle", "40KiB", "--budget", "30%"]
QUICK = ["-n", "4", "--temp", "0"]


@pytest.fixture(params=["dumb", "xterm-256color"])
def terminal(request: pytest.FixtureRequest, tiny_path: Path, tmp_path: Path) -> Iterator[PtySession]:
    session = PtySession(
        "-m", tiny_path, "-c", "128", *SLOW, "--show-timings", term=request.param, XDG_CACHE_HOME=str(tmp_path)
    )
    session.wait_for("/help for commands")
    session.wait_for(">")
    yield session
    session.close()


def test_ctrl_c_in_a_terminal(terminal: PtySession) -> None:
    """In a reply it ends the reply and keeps the session; twice at the prompt it leaves with 130."""
    terminal.send("hello there\r")
    time.sleep(1.0)  # somewhere in the prompt or in the reply, slowed down by the throttle
    terminal.send("\x03")
    terminal.wait_for("tokens at|stopped before the first token")
    terminal.wait_for(">")
    terminal.send("/stats\r")
    terminal.wait_for("hit rate")
    terminal.wait_for("context used")
    terminal.wait_for(">")
    terminal.send("\x03")
    terminal.wait_for("again")
    terminal.wait_for(">")
    terminal.send("\x03")
    assert terminal.exit_code() == 130


def test_end_of_input_in_a_terminal_leaves_with_0(terminal: PtySession) -> None:
    terminal.send("\x04")
    assert terminal.exit_code() == 0


def opened(path: Path, cache: Path, columns: int = 80, **env: str) -> PtySession:
    session = PtySession(
        "-m", path, *QUICK, term="xterm-256color", columns=columns, XDG_CACHE_HOME=str(cache), **env
    )
    session.wait_for("fit in memory|experts in memory")
    session.wait_for(">")
    return session


def test_a_dumb_terminal_gets_no_escape_sequence(tiny_path: Path, tmp_path: Path) -> None:
    session = PtySession("-m", tiny_path, *QUICK, term="dumb", XDG_CACHE_HOME=str(tmp_path))
    try:
        seen = session.wait_for("> ")
        session.send("hello \\\r")
        seen += session.wait_for(r"\. ")
        session.send("there\r")
        seen += session.wait_for("t/s")
        session.send("/help\r")
        seen += session.wait_for(r"Ctrl-C\s+stops\s+a\s+reply")
        assert "\x1b" not in seen
        session.send("\x04")
        assert session.exit_code() == 0
    finally:
        session.close()


def test_no_color_has_no_colour(tiny_path: Path, tmp_path: Path) -> None:
    session = PtySession("-m", tiny_path, *QUICK, term="xterm-256color", NO_COLOR="1", XDG_CACHE_HOME=str(tmp_path))
    try:
        seen = session.wait_for("/help for commands")
        session.wait_for(">")
        session.send("hello\r")
        seen += session.wait_for("t/s")
        assert not re.search(r"\x1b\[[0-9;]*[1-9]m", seen)  # only resets, of the prompt
    finally:
        session.close()


def test_pasted_lines_are_one_message(tiny_path: Path, tmp_path: Path) -> None:
    session = opened(tiny_path, tmp_path)
    try:
        session.send("\x1b[200~one\ntwo\x1b[201~\r")
        session.wait_for("t/s")
        session.send("/save talk.json\r".replace("talk.json", str(tmp_path / "talk.json")))
        session.wait_for("1 turn is in")
        assert '"one\\ntwo"' in (tmp_path / "talk.json").read_text()
    finally:
        session.close()


def test_a_narrow_terminal_gets_lines_that_fit(tiny_path: Path, tmp_path: Path) -> None:
    session = opened(tiny_path, tmp_path, columns=40, NO_COLOR="1")
    try:
        session.send("/help\r")
        shown = session.wait_for(r"stops\s+a\s+reply")
        lines = plain(shown.partition("/help")[2]).replace("\r", "").split("\n")
        assert max(map(len, lines)) < 40
        assert any(line.startswith("/set NAME VALUE") for line in lines)
        session.wait_for(">")
        session.send("/stats\r")
        shown = session.wait_for("context used")
        rows = [line for line in plain(shown).replace("\r", "").split("\n") if re.match(r" +\d+ +\d+/\d+ ", line)]
        assert rows
        assert max(map(len, rows)) <= 40
        assert "█" not in shown
    finally:
        session.close()
