"""`--inserts auto` and `--lambda auto:PRICE%`: what they choose, store and refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from models.errors import FileError, UsageError
from pearl_cli.__main__ import main
from pearl_cli.evaluate.calibrate import GRID
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.routing.auto_inserts import LinkSpeed
from pearl_cli.routing.lambda_file import lambda_path, store_lambda, stored_lambda
from pearl_cli.routing.settings import RoutingSettings
from pearl_cli.routing.steering import Steering
from pearl_cli.sizes import Size
from tests.tiny_gguf import Typed, tiny_moe, write_gguf

PSR = RoutingSettings("psr", None, 0.003, 1, 1, 0.25)
TEXT = "".join(chr(33 + (7 * i * i + 3 * i) % 90) for i in range(400))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny = tiny_moe("olmoe")
    metadata = {**tiny.metadata, "tokenizer.ggml.merges": Typed("str", [])}
    return write_gguf(tmp_path / "tiny.gguf", metadata, tiny.tensors)


@pytest.mark.parametrize(
    ("read", "layer_s", "inserts"), [(1e9, 1.9e-3, 0), (1e9, 2.1e-3, 1), (32e9, 0.4e-3, 6), (32e9, 4e-3, 8)]
)
def test_inserts_are_what_hides_behind_a_layer(read: float, layer_s: float, inserts: int) -> None:
    """An expert of 2 MB: at 1 GB/s it takes 2 ms, at 32 GB/s 0.0625 ms; never more than a token uses."""
    assert LinkSpeed(read, layer_s, 2_000_000).hidden_inserts(8) == inserts


def test_measured_inserts_are_fixed_and_said(model: Path) -> None:
    said: list[str] = []
    options = RunOptions(threads=1, ctx_size=64, routing="psr", inserts="auto", budget=Size(percent=60))
    with open_engine(model, options, notify=said.append) as opened:
        inserts = opened.routing.inserts
        assert inserts is not None
        assert 0 <= inserts <= 2
        assert any(f"--inserts auto is {inserts}: reads" in line for line in said)
        assert opened.engine.tokens == []
    with pytest.raises(UsageError, match="every expert is in memory"), open_engine(
        model, replace(options, budget=Size(percent=100))
    ):
        pass


def test_a_factor_comes_back_for_the_same_setting_only(tmp_path: Path) -> None:
    model = tmp_path / "m-00001-of-00003.gguf"
    assert lambda_path(model) == tmp_path / "m.routing.json"
    found = replace(PSR, lambda_=0.15)
    store_lambda(model, "f", found, "lru", 0.25, 0.15, "a.txt")
    store_lambda(model, "f", found, "lru", 0.5, 0.2, "a.txt")
    store_lambda(model, "f", found, "lru", 0.5, 0.3, "b.txt")
    settings, source = stored_lambda(model, "f", PSR, "lru", 0.45)
    assert settings == replace(PSR, lambda_=0.3)
    assert "b.txt at a residency of 50%" in source
    assert stored_lambda(model, "f", PSR, "lru", 0.3)[0].lambda_ == 0.15
    for other, evict, fingerprint in (
        (replace(PSR, inserts=2), "lru", "f"), (replace(PSR, steering=Steering(refresh=False)), "lru", "f"),
        (replace(PSR, lambda_price=0.01), "lru", "f"), (PSR, "pearl", "f"),
        (PSR, "lru", "another model"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="pearl eval"):
            stored_lambda(model, fingerprint, other, evict, 0.25)


def test_a_factor_found_under_another_default_is_not_used(tmp_path: Path) -> None:
    """A stored setting names every open choice: what was the default when it was found may have changed since."""
    model = tmp_path / "m.gguf"
    path = store_lambda(model, "f", replace(PSR, lambda_=0.15), "lru", 0.25, 0.15, "a.txt")
    stored = json.loads(path.read_text())
    assert "refresh=yes" in stored["entries"][0]["steer"]
    stored["entries"][0]["steer"] = stored["entries"][0]["steer"].replace("refresh=yes", "refresh=no")
    path.write_text(json.dumps(stored))
    with pytest.raises(UsageError, match="has no factor for routing psr, top-j 1, inserts 1, evict lru, price"):
        stored_lambda(model, "f", PSR, "lru", 0.25)


@pytest.mark.parametrize("content", ["{", "[]", '{"fingerprint": "f", "entries": [{"routing": "psr"}]}'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "m.routing.json").write_text(content)
    with pytest.raises(FileError, match=r"m\.routing\.json"):
        stored_lambda(tmp_path / "m.gguf", "f", PSR, "lru", 0.25)


def test_calibration_is_stored_and_used(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    steering = ["-m", str(model), "-t", "1", "--routing", "psr", "--evict", "lru"]
    evaluated = ["eval", "-f", str(text), "-c", "64", "--residency", "50%", "--json", *steering]
    assert main([*evaluated, "--lambda", "auto:50%"]) == 0
    result = json.loads(capsys.readouterr().out)
    (steered,) = result["compared"]
    assert (result["routing"], steered["routing"]) == ("exact", "psr")
    assert steered["lambda"] in GRID
    assert steered["perplexity_price"]["high"] <= 0.5
    completed = ["complete", "-p", "abc", "-n", "2", "--json", "--budget", "60%", *steering]
    assert main([*completed, "--lambda", "auto:50%"]) == 0
    assert f"lambda {steered['lambda']:g}" in json.loads(capsys.readouterr().out)["routing"]
    assert main([*completed, "--lambda", "auto:40%"]) == 2
    capsys.readouterr()
    (tmp_path / "tiny.routing.json").unlink()
    (tmp_path / "tiny.routing.json.partial").mkdir()  # as a folder that cannot be written
    assert main([*evaluated, "--lambda", "auto:50%"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["compared"][0]["lambda"] == steered["lambda"]
    assert "could not be stored" in err
    assert f"give it as --lambda {steered['lambda']:g}" in err
    assert main([*evaluated, "--lambda", "auto:0.000001%"]) == 2
    assert "not shown to be within" in capsys.readouterr().err
