"""Cache-aware routing where a user meets it: marks on replies, /routing, records of bench."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from pearl_cli.__main__ import main

TEXT = "the quick brown fox jumps over the lazy dog, again and again, until the text is long enough. " * 3
PSR = ["--routing", "psr", "--budget", "60%", "--evict", "lru"]


def test_replies_are_marked_once_a_setting(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["one", "/routing psr --residency 50%", "two", "three", "/routing", "/routing exact", "four", "/routing no"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert main(["chat", "-m", str(tiny_path), "-n", "4", "--temp", "0", "--budget", "60%"]) == 0
    said = capsys.readouterr().err
    assert said.count("close to the model's exact answer, not the same") == 1
    assert "psr, lambda 0.1, top-j 1, inserts 1, residency 50%; its cache starts empty" in said
    assert "inserted ahead" in said
    assert "/routing 'no'" in said
    assert "write one of exact, cache-prior, psr, cache-prior-physical and then" in said


def test_a_completion_says_how_it_was_routed(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["complete", "-m", str(tiny_path), "-p", "abc", "-n", "8", "--temp", "0", "--ignore-eos"]
    assert main([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["routing"] == "exact"
    assert main([*args, "--routing", "cache-prior-physical", "--budget", "60%"]) == 0
    assert "not deterministic" in capsys.readouterr().err


def test_a_logical_cache_larger_than_the_slots_is_said(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["complete", "-m", str(tiny_path), "-p", "abc", "-n", "2", "--routing", "psr", "--budget", "50%"]
    assert main([*args, "--residency", "75%"]) == 0
    assert "the logical cache holds 6 experts of a layer, its slots" in capsys.readouterr().err
    assert main([*args, "--residency", "25%"]) == 0
    assert "the logical cache holds" not in capsys.readouterr().err


def test_bench_puts_the_price_beside_the_speed(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    args = ["bench", "-m", str(tiny_path), "-p", "0", "-n", "6", "-r", "1", "-c", "64", *PSR, "--price", str(text)]
    assert main([*args, "-o", "json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["routing"] for record in records} == {"psr"}
    fed = {record["fed"]: record["ids"] for record in records}
    assert list(fed) == ["teacher-forced", "free-running"]
    assert fed["teacher-forced"] != fed["free-running"]
    for record in records:
        assert (record["lambda"], record["top_j"], record["inserts"], record["deterministic"]) == (0.1, 1, 1, True)
        assert record["avg_ts"] > 0
        assert record["perplexity_price"]["low"] <= record["perplexity_price"]["value"]
        assert 0 < record["route_agreement"]["value"] <= 1
    assert main(args) == 0
    table = capsys.readouterr().out
    assert "price in perplexity" in table
    assert table.count("free-running") == table.count("teacher-forced") >= 1


def test_a_price_of_exact_routing_is_refused(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    args = ["bench", "-m", str(tiny_path), "-p", "0", "-n", "2", "-r", "1", "-c", "64", "--price", str(text)]
    assert main(args) == 2
    assert "exact routing costs nothing" in capsys.readouterr().err
    assert main([*args[:-1], "none.txt", *PSR]) == 2
    assert "--price none.txt: No such file" in capsys.readouterr().err
