"""`pearl plan`: the floor it names is one that a run accepts, and what it says is what the run will do."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pearl_cli.__main__ import main
from tests.tiny_gguf import write_gguf

ROOT = Path(__file__).resolve().parents[2]


def test_the_named_floor_is_enough_for_a_run(tiny_path):
    def pearl(*args):
        command = [sys.executable, "-m", "pearl_cli", *map(str, args)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    refused = pearl("plan", tiny_path, "--ram", "1MiB")
    assert refused.returncode == 2
    floor = re.search(r"--ram 1MiB is below the floor of (\d+MiB)", refused.stderr)[1]
    ran = pearl("complete", "-m", tiny_path, "-p", "abc", "-n", "2", "--ram", floor)
    assert ran.returncode == 0, ran.stderr


def test_record_adds_up(tiny_path, capsys):
    assert main(["plan", str(tiny_path), "--budget", "50%", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    parts = ("process_bytes", "weight_bytes", "kv_bytes", "workspace_bytes", "reserve_bytes", "expert_slot_bytes")
    assert sum(record[part] for part in parts) == record["total_bytes"] <= record["ceiling_bytes"]
    assert record["floor_bytes"] < record["ceiling_bytes"]
    assert 0 < record["experts_kept"] < record["experts"] == 16


def test_table_names_every_part(tiny_path, capsys):
    assert main(["plan", "-m", str(tiny_path)]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("weight", "kv", "workspace", "floor", "experts kept"))


def test_a_gpu_flag_where_no_gpu_is_leaves_a_note(tiny_path, capsys, monkeypatch):
    monkeypatch.setattr("pearl_cli.device.choose_gpu.DRIVER_FILES", ())
    assert main(["plan", str(tiny_path), "--vram", "1GiB"]) == 0
    assert "--vram has no effect: no GPU is used here" in capsys.readouterr().err


REFUSED = [
    ("--evict static", "--evict static needs a usage profile of this model"),
    ("-Cr 0-9999", "--cpu-mask, --cpu-range: core"),
    ("--lambda 0.1", "--lambda is for cache-aware routing"),
    ("--residency 50%", "--residency is for cache-aware routing"),
    ("--routing psr --evict static", "--routing psr goes by what it has seen"),
    ("--routing cache-prior --inserts 2", "--routing cache-prior inserts nothing"),
    ("--routing psr --inserts 99", "--inserts 99: only the best 2 of the next router"),
    ("--routing psr --top-j 99", "--top-j 99: a token of this model uses 2 experts"),
    ("--routing psr --inserts auto --budget 100%", "--inserts auto measures copies"),
    ("--routing psr --lambda auto:0.3%", "--lambda auto: tiny.routing.json has no factor"),
    ("--predictor oracle:0.9", "--predictor oracle:0.9 knows recorded routing only"),
    ("--store disk --quant q8_0", "--store disk: --quant means a conversion"),
    ("--miss cpu --device cpu", "--miss cpu is about a GPU"),
]


@pytest.mark.parametrize(("flags", "words"), REFUSED)
def test_the_plan_refuses_what_the_run_refuses_in_the_same_words(flags, words, tiny_path, tmp_path, capsys):
    own = tmp_path / "tiny.gguf"  # without the profile of another test's run beside it
    own.symlink_to(tiny_path)
    said = []
    for command in (["plan"], ["complete", "-p", "a", "-n", "1"]):
        assert main([*command, "-m", str(own), *flags.split()]) == 2, command
        out, err = capsys.readouterr()
        assert out == ""
        said.append(err)
    assert said[0] == said[1]
    assert said[0].startswith(f"pearl: {words}")


def test_a_recorded_trace_or_an_earlier_session_lets_static_eviction_be_planned(tiny_path, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("abc abd abe")
    model = ["-m", str(tiny_path)]
    assert main(["trace", *model, "-f", str(tmp_path / "text.txt"), "-o", str(tmp_path / "t.csv"), "--no-profile"]) == 0
    assert main(["plan", *model, "--evict", "static", "--usage", str(tmp_path / "t.csv")]) == 0
    own = tmp_path / "own.gguf"  # a profile lies beside its model
    own.write_bytes(tiny_path.read_bytes())
    assert main(["complete", "-m", str(own), "-p", "abc", "-n", "1"]) == 0
    assert main(["plan", "-m", str(own), "--evict", "static"]) == 0


@pytest.mark.parametrize("command", ["plan", "complete -p a", "chat -p a"])
def test_what_is_no_whole_model_is_refused_as_that(command, tmp_path, capsys):
    """Not for the vocabulary that it lacks."""
    path = write_gguf(tmp_path / "im.gguf", {"general.architecture": "imatrix", "general.type": "imatrix"})
    assert main([*command.split(), "-m", str(path)]) == 2
    assert f"pearl: {path}: general.type is 'imatrix'; pearl runs whole models" in capsys.readouterr().err
