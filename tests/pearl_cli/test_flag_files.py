"""A fault with a file begins with the flag that named it; a place that cannot be written is found before the work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models.errors import FileError, GGUFError, UsageError
from pearl_cli.__main__ import main
from pearl_cli.flag_files import check_place, file_of


@pytest.mark.parametrize("kind", [FileError, GGUFError])
def test_a_fault_keeps_its_kind_and_gains_its_flag(kind: type[FileError]) -> None:
    with pytest.raises(kind, match=r"^--usage t.csv: cut short$"), file_of("--usage"):
        raise kind("t.csv: cut short")


def test_the_systems_own_fault_is_one_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"^--plot .*none/p.svg: No such file"), file_of("--plot"):
        (tmp_path / "none" / "p.svg").write_text("")


def test_other_faults_pass() -> None:
    with pytest.raises(UsageError, match=r"^the text is too short$"), file_of("-f"):
        raise UsageError("the text is too short")
    with pytest.raises(OSError, match="no file"), file_of("-f"):
        raise OSError("no file")


def test_a_place_is_looked_at_before_the_work(tmp_path: Path) -> None:
    check_place("-o", None)
    check_place("-o", tmp_path / "new.csv")
    with pytest.raises(FileError, match=r"^-o .*: this is a folder"):
        check_place("-o", tmp_path)
    with pytest.raises(FileError, match=r"^-o .*none/new.csv: the folder .*none does not exist"):
        check_place("-o", tmp_path / "none" / "new.csv")


def test_a_place_is_neither_a_device_nor_a_file_of_another_flag(tmp_path: Path) -> None:
    """A device would be replaced: files are written beside their place and renamed."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match=r"^-o .*pipe: this is no regular file"):
        check_place("-o", tmp_path / "pipe")
    with pytest.raises(FileError, match=r"^-o /dev/null: this is no regular file"):
        check_place("-o", Path("/dev/null"))
    (tmp_path / "link").symlink_to(tmp_path / "text.txt")
    check_place("-o", tmp_path / "new.csv", [tmp_path / "text.txt", None])
    with pytest.raises(FileError, match=r"^-o .*text.txt: another flag names this file too"):
        check_place("-o", tmp_path / "text.txt", [None, tmp_path / "link"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["complete", "-f", "none.txt"], "-f none.txt: No such file"),
        (["complete", "-p", "x", "--timeline", "none/t.json"], "--timeline none/t.json: the folder none"),
        (["chat", "-f", "none.txt"], "-f none.txt: No such file"),
        (["chat", "-sysf", "none.txt"], "-sysf none.txt: No such file"),
        (["chat", "-st", "-p", "x", "--chat-template-file", "none"], "--chat-template-file none: No such file"),
        (["chat", "-p", "x", "--chat-template-kwargs", "{"], """write '{"enable_thinking": false}'"""),
        (["chat", "-p", "x", "--chat-template-kwargs", "[" * 100_000], """write '{"enable_thinking": false}'"""),
        (["chat", "-p", "x", "--chat-template-kwargs", '{"a": 1, "messages": []}'], "'messages' is given to the"),
        (["chat", "-m", "", "-p", "x"], "'-m' / '--model': the name is empty; write . for the current folder"),
        (["info", ""], "the name is empty"),
        (["convert", "nowhere", "-o", ""], "'-o' / '--output': the name is empty"),
        (["synth", "olmoe-1b-7b", "-o", ""], "'-o' / '--output': the name is empty"),
        (["convert", "nowhere", "-o", "out", "--unify"], "--unify goes with --merge"),
        (["trace", "-f", "x", "-o", "x"], "-o x: another flag names this file too"),
        (["trace", "-f", "x", "-o", "t.csv", "--hidden", "t.csv"], "--hidden t.csv: another flag names this file too"),
        (["eval", "-f", "x", "--logits", "x"], "--logits x: another flag names this file too"),
        (["complete", "-f", "x", "--timeline", "x"], "--timeline x: another flag names this file too"),
        (["train", "x", "--hidden", "y", "-o", "y"], "-o y: another flag names this file too"),
        (["trace", "-f", "none.txt", "-o", "t.csv"], "-f none.txt: No such file"),
        (["trace", "-f", "x", "-o", "none/t.csv"], "-o none/t.csv: the folder none"),
        (["trace", "-f", "x", "-o", "t.csv", "--hidden", "none/t.npz"], "--hidden none/t.npz: the folder none"),
        (["eval", "-f", "none.txt"], "-f none.txt: No such file"),
        (["complete", "-p", "x", "--usage", "none.csv"], "--usage none.csv: No such file"),
        (["complete", "-f", ""], "'-f' / '--file': the name is empty (see"),
        (["trace", "-f", "x", "-o", ""], "'-o' / '--out': the name is empty (see"),
        (["eval", "-f", "x", "--logits", ""], "'--logits': the name is empty (see"),
        (["simulate", ""], "'TRACE': the name is empty (see"),
    ],
)
def test_commands_name_the_flag(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1
