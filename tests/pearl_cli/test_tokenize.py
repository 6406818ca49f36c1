"""`pearl tokenize` on a file that holds a vocabulary and no weights."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from pearl_cli.main import run
from tests.tiny_gguf import Typed, write_gguf
from tests.tiny_vocab import CONTROL, byte_level


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write(tmp_path / "vocab.gguf", "gpt-2")


def write(path: Path, pre: str) -> str:
    metadata = byte_level(pre, ("3 3", "33 33"), {"<s>": CONTROL}, bos_token_id=258, add_bos_token=True)
    types = metadata.pop("tokenizer.ggml.token_type").tolist()
    texts = {key: Typed("str", metadata.pop(f"tokenizer.ggml.{key}")) for key in ("tokens", "merges")}
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in texts.items()}
    return str(write_gguf(path, metadata | {"tokenizer.ggml.token_type": Typed("i32", types)}))


def type_in(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))


def test_ids_with_bos_on_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokenize", "-m", model, "-p", "a3333"]) == 0
    assert capsys.readouterr().out == "258 97 257\n"


def test_json_without_bos(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokenize", "-m", model, "--no-bos", "--json", "-p", "ab"]) == 0
    assert json.loads(capsys.readouterr().out) == [97, 98]


def test_special_tokens_only_when_asked(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokenize", "-m", model, "--no-bos", "-p", "<s>"]) == 0
    assert run(["tokenize", "-m", model, "--no-bos", "--special", "-p", "<s>"]) == 0
    assert capsys.readouterr().out == "60 115 62\n258\n"


def test_a_file_is_taken_as_it_is(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(b"a\r\nb\n")
    assert run(["tokenize", "-m", model, "--no-bos", "-f", str(tmp_path / "text")]) == 0
    assert capsys.readouterr().out == "97 13 10 98 10\n"


def test_standard_input(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, b"a\n")
    assert run(["tokenize", "-m", model, "--no-bos"]) == 0
    type_in(monkeypatch, b"")
    assert run(["tokenize", "-m", model, "--no-bos"]) == 0
    assert capsys.readouterr().out == "97 10\n\n"


def test_jsonl_gives_one_array_a_line(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, '"a\\nb"\n""\n"é"'.encode())
    assert run(["tokenize", "-m", model, "--no-bos", "--jsonl"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [[97, 10, 98], [], [195, 169]]


def test_pre_overrides_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(tmp_path / "new.gguf", "zzz-new")
    assert run(["tokenize", "-m", model, "-p", "3333"]) == 2
    error = capsys.readouterr().err
    assert "'zzz-new'" in error
    assert error.count("\n") == 1
    assert run(["tokenize", "-m", model, "--no-bos", "--pre", "qwen2", "-p", "33"]) == 0
    assert capsys.readouterr().out == "51 51\n"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"3\n", "line 1: not a JSON string"),
        (b'"a"\nx\n', "line 2: not JSON"),
        (b"[" * 100_000 + b"\n", "line 1: not JSON"),
        (b"9" * 5000 + b"\n", "line 1: not JSON"),
        (b'"\xff"\n', "line 1: not valid UTF-8 at byte 1"),
        (b'"\\ud83d"\n', "line 1: the text is not valid Unicode"),
    ],
)
def test_bad_jsonl_names_its_line(
    raw: bytes, message: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, raw)
    assert run(["tokenize", "-m", model, "--jsonl"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "x", "-f", "y"], "give the text once"),
        (["-p", "x", "--jsonl"], "give the text once"),
        (["-f", "no-such-file"], "no-such-file: No such file"),
    ],
)
def test_usage_errors(args: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokenize", "-m", model, *args]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_text_that_is_no_utf8(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(b"ab\xff")
    assert run(["tokenize", "-m", model, "-f", str(tmp_path / "text")]) == 2
    assert "not valid UTF-8 at byte 2" in capsys.readouterr().err
