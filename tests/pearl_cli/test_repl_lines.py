"""What a line typed at the prompt means: continued lines, messages that look like commands, conversations in files."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from models.errors import FileError
from pearl_cli.__main__ import main
from pearl_cli.conversation import Conversation
from pearl_cli.line_input import PipedInput, read_message
from pearl_cli.repl import COMMANDS, help_text
from pearl_cli.repl_files import load_conversation, save_conversation
from pearl_cli.terminal import Terminal


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> PipedInput:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return PipedInput()


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one \\\ntwo\\\nthree\nfour", ["one \ntwo\nthree", "four"]),
        ("one\\", ["one"]),
        ("one\\\n", ["one"]),
        ("\\\n\ntwo", ["\n", "two"]),
    ],
)
def test_a_backslash_joins_the_next_line(monkeypatch: pytest.MonkeyPatch, text: str, messages: list[str]) -> None:
    lines = piped(monkeypatch, text)
    assert [read_message(lines) for _ in messages] == messages
    with pytest.raises(EOFError):
        read_message(lines)


def chat(
    path: Path, script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: str
) -> tuple[str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(script))
    assert main(["chat", "-m", str(path), "-n", "3", "--temp", "0", *args]) == 0
    out, err = capsys.readouterr()
    return out, err


def test_a_continued_line_is_one_turn_and_a_space_makes_a_command_a_message(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "talk.jsonl"
    script = f"one \\\ntwo\n/etc/hosts what is it\n /etc/hosts what is it\n/save {saved}\n"
    out, err = chat(tiny_path, script, capsys, monkeypatch)
    assert out.count("\n") >= 2
    assert "/etc/hosts is no command; /help lists them, and a space before it makes it a message" in err
    messages = json.loads(saved.read_text())
    assert [each["content"] for each in messages if each["role"] == "user"] == ["one \ntwo", "/etc/hosts what is it"]


def test_a_saved_conversation_is_gone_on_with_as_if_it_had_not_ended(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "talk.jsonl"
    whole, _ = chat(tiny_path, f"/system brief\nhello\n/save {saved}\nagain\n", capsys, monkeypatch)
    first, _ = chat(tiny_path, "/system brief\nhello\n", capsys, monkeypatch)
    rest, err = chat(tiny_path, f"/load {saved}\nagain\n", capsys, monkeypatch)
    assert first + rest == whole
    assert "1 turn from" in err
    fresh, _ = chat(tiny_path, "again\n", capsys, monkeypatch)
    assert fresh != rest


def test_faults_with_conversation_files_keep_the_session(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").write_text("[")
    script = f"/save\n/load\n/load {tmp_path}/none\n/load {tmp_path}/bad\n/save {tmp_path}/none/x\nhello\n"
    out, err = chat(tiny_path, script, capsys, monkeypatch)
    assert out.count("\n") >= 1
    faults = ("none: No such file", "bad: not a conversation of /save", "none does not exist; make it first")
    for part in ("/save FILE", "/load FILE", *faults):
        assert part in err


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[1]",
        "[" * 100_000,
        '[{"role": "user"}]',
        '[{"role": "user", "content": "a"}]',
        '[{"role": "bot", "content": "a"}]',
    ],
)
def test_a_file_that_is_no_conversation_changes_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(content)
    talk = Conversation(system="S")
    with pytest.raises(FileError, match="not a conversation of /save"):
        load_conversation(path, talk)
    assert talk == Conversation(system="S")


def test_a_conversation_comes_back(tmp_path: Path) -> None:
    talk = Conversation(system="sei kurz ☕")
    talk.ask("one\ntwo")
    talk.answer("three")
    save_conversation(tmp_path / "talk.json", talk)
    assert (tmp_path / "talk.json").read_text(encoding="utf-8").count("\n") == 1
    loaded = Conversation()
    assert load_conversation(tmp_path / "talk.json", loaded).startswith("1 turn from")
    assert loaded == talk


def test_bytes_that_are_no_text_are_not_sent(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = chat(tiny_path, "h\udcffi\nhello\n", capsys, monkeypatch)
    assert "this line was not sent: it is not UTF-8 text at character 2" in err
    assert out == chat(tiny_path, "hello\n", capsys, monkeypatch)[0]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_help_fits_and_names_every_command(columns: int) -> None:
    lines = help_text(columns).split("\n")
    assert max(map(len, lines)) < columns
    assert all(any(line.startswith(name) for line in lines) for name in COMMANDS)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("term", "drawn"), [("xterm", True), ("dumb", False), ("unknown", False)])
def test_a_dumb_terminal_gets_neither_colour_nor_replaced_lines(
    monkeypatch: pytest.MonkeyPatch, term: str, drawn: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "20")
    err = Tty()
    terminal = Terminal("auto", Tty(), err)
    terminal.progress("compiling kernels (first run on this machine)")
    terminal.note("done")
    assert ("\r" in err.getvalue()) == drawn
    assert ("\x1b" in err.getvalue()) == drawn
    if drawn:
        assert err.getvalue().split("\r")[1] == "compiling kernels ("  # one less than the terminal is wide


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("/read {}/none", "/read {}/none: No such file"),
        ("/read {}/bad", "/read {}/bad: not UTF-8 text"),
        ("/read ~no-such-user/x", "/~no-such-user/x: No such file"),
        ("/save ~no-such-user/x", "/~no-such-user does not exist; make it first"),
        ("/load {}/bad", "/load {}/bad: not UTF-8 text"),
        ("/load {}/half", "/load {}/half: not a conversation of /save"),
        ("/save /dev/null", "/save /dev/null: this is no regular file"),
        ("/load -", "/-: No such file"),
        ("/read -", "/-: No such file"),
    ],
)
def test_a_fault_with_a_file_is_a_warning(
    line: str, fault: str, tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "bad").write_bytes(b"\xff")
    half = [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "half").write_text(json.dumps(half))
    out, err = chat(tiny_path, f"{line.format(tmp_path)}\nhello\n", capsys, monkeypatch)
    assert fault.format(tmp_path) in err
    assert out  # the session goes on
