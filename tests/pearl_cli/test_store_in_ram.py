"""A model whose shards lie in RAM gives the bits of the same model on the disk, and its bytes count under `--ram`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.pipeline import ConvertOptions, convert
from models.errors import MemoryPlanError, UsageError
from pearl_cli.main import run
from pearl_cli.open_engine import open_engine
from pearl_cli.open_model import model_bytes, open_model, wants_ram
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.residency.in_place import InPlaceSlots
from pearl_cli.sizes import Size
from tests.convert.checkpoints import config, sparse_folder, weights, write_folder, write_tokenizer
from tests.peak_memory import ROOT, peak_rss_bytes

PROMPT = [30, 31, 5, 9, 2]
GB = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_folder(tmp_path_factory.mktemp("ram") / "hf", weights(), config(eos_token_id=33), shards=2)
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def on_disk(folder: Path) -> Path:
    return convert(folder, folder.parent / "disk", ConvertOptions(quant="q8_0"))


def options(**changes: Any) -> RunOptions:
    return RunOptions(**{"threads": 2, "ctx_size": 32, **changes})


def opened(path: Path, chosen: RunOptions) -> OpenedEngine:
    return open_engine(open_model(path, chosen), chosen)


def logits(path: Path, chosen: RunOptions) -> np.ndarray:
    """Of a prompt and six tokens after it, each the greedy choice."""
    with opened(path, chosen) as run_of:
        rows = [run_of.engine.prefill(PROMPT).copy()]
        for _ in range(6):
            rows.append(run_of.engine.decode_step(int(np.argmax(rows[-1]))).copy())
        return np.stack(rows)


@pytest.mark.parametrize(
    "flags",
    [
        {"quant": "q8_0"},
        {"quant": "q8_0", "threads": 1},
        {"quant": "q8_0", "budget": Size(percent=60)},
        {"quant": "q8_0", "budget": Size(percent=60), "throttle": Size(n_bytes=200 << 20), "evict": "lru"},
        {"quant": "q8_0", "predictor": "next-gate"},
        {"quant": "q8_0", "budget": Size(percent=70), "predictor": "next-gate"},
    ],
)
def test_a_folder_in_ram_is_the_converted_model_bit_for_bit(
    flags: dict[str, Any], folder: Path, on_disk: Path
) -> None:
    expected = logits(on_disk, options())
    np.testing.assert_array_equal(logits(folder, options(**flags)), expected)
    assert not list(folder.glob("*.gguf*"))


@pytest.mark.parametrize("budget", [None, Size(percent=60)])
def test_shards_and_stock_files_read_into_ram_compute_the_same(
    budget: Size | None, on_disk: Path, tmp_path: Path
) -> None:
    stock = convert(on_disk, tmp_path / "stock.gguf", ConvertOptions(merge=True))
    expected = logits(on_disk, options())
    for path in (on_disk, stock):
        np.testing.assert_array_equal(logits(path, options(store="ram", budget=budget)), expected)


@pytest.mark.parametrize("routing", ["psr", "cache-prior"])
def test_routing_on_a_logical_cache_is_the_same_from_either_store(routing: str, folder: Path, on_disk: Path) -> None:
    flags = {"routing": routing, "lambda_": "0.5", "residency": Size(percent=50)}
    expected = logits(on_disk, options(**flags))
    np.testing.assert_array_equal(logits(folder, options(quant="q8_0", **flags)), expected)


def test_routing_whose_logical_cache_owns_the_slots_is_the_same_in_place(folder: Path, on_disk: Path) -> None:
    """There experts leave and come back, and in place that moves nothing."""
    flags = {"routing": "psr", "lambda_": "0.5"}
    np.testing.assert_array_equal(
        logits(folder, options(quant="q8_0", **flags)), logits(on_disk, options(**flags))
    )


def test_experts_dropped_in_place_come_back(folder: Path) -> None:
    with opened(folder, options(quant="q8_0")) as run_of:
        before = run_of.engine.prefill(PROMPT).copy()
        run_of.controller.drop_residents()
        run_of.engine.reset()
        misses = run_of.controller.totals.misses
        np.testing.assert_array_equal(run_of.engine.prefill(PROMPT), before)
        assert run_of.controller.totals.misses > misses


def test_without_a_budget_no_byte_is_held_twice(folder: Path) -> None:
    chosen = options(quant="q8_0")
    with opened(folder, chosen) as run_of:
        assert isinstance(run_of.controller.arena, InPlaceSlots)
        assert run_of.plan.all_resident
        assert run_of.plan.slots.n_bytes == 0
        assert run_of.plan.needs.weight_bytes > run_of.expert_bytes_total
        store = run_of.gguf.memory
        assert store is not None
        for state in run_of.controller.layers:
            assert state is not None
            place = state.places[3][1]
            assert state.table.up[3] == store.address(place.file_index, place.file_offset)
    with opened(folder, options(quant="q8_0", budget=Size(percent=60))) as run_of:
        assert not isinstance(run_of.controller.arena, InPlaceSlots)
        assert run_of.plan.slots.n_bytes > 0


def test_the_store_counts_under_the_ceiling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = options(quant="q8_0", ram=Size(n_bytes=4 * GB))
    with opened(folder, chosen) as run_of:
        floor, experts = run_of.plan.floor_bytes, run_of.expert_bytes_total
        assert run_of.plan.total_bytes <= run_of.plan.ceiling_bytes
    monkeypatch.setattr("convert.host_shards.HostShards.missing_bytes", lambda store, wanted: 8 * GB)
    with pytest.raises(MemoryPlanError, match=r"--ram 4096MiB is below the floor of .* and experts 8\d\d\dMiB"):
        opened(folder, chosen)
    monkeypatch.undo()
    filled: list[bool] = []
    monkeypatch.setattr("convert.host_shards.HostShards.fill", lambda *args: filled.append(True))
    with pytest.raises(MemoryPlanError):
        opened(folder, options(quant="q8_0", ram=Size(n_bytes=floor // 2)))
    assert not filled, "refused before a weight is made"
    assert experts > 0


def test_making_the_store_counts_where_it_takes_more_than_running(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.host_shards.HostShards.filling_bytes", lambda store, threads: threads * 3 * GB)
    with pytest.raises(MemoryPlanError, match="smaller --quant"):
        opened(folder, options(quant="q8_0", threads=2, ram=Size(n_bytes=5 * GB)))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_process_stays_under_the_ceiling_while_it_makes_and_runs_the_store(
    tmp_path: Path,
) -> None:
    """300 MB of float32 experts (holes of a sparse file) become 80 MB; the ceiling is the floor that is named."""
    path = sparse_folder(tmp_path / "hf", 24, 1024, 1024)
    write_tokenizer(path)
    flags = ["-m", str(path), "--quant", "q8_0", "-t", "2", "-c", "32", "-ub", "16"]
    code = "import sys; from pearl_cli.main import run; sys.exit(run(sys.argv[1:]))"
    refused = subprocess.run(
        [sys.executable, "-c", code, "complete", *flags, "-p", "abc", "--ram", "50MiB"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"below the floor of (\d+)MiB", refused.stderr)
    assert refused.returncode == 2
    assert found is not None, refused.stderr
    arguments = ["complete", *flags, "-p", "abc", "-n", "3", "--ignore-eos", "--ram", f"{found[1]}MiB"]
    peak = peak_rss_bytes(*arguments)
    assert 80 << 20 < peak <= int(found[1]) << 20


def test_who_goes_to_ram(folder: Path, on_disk: Path) -> None:
    assert wants_ram(folder, options())
    assert not wants_ram(on_disk, options())
    assert wants_ram(on_disk, options(store="ram"))
    assert wants_ram(on_disk, options(quant="q8_0"))
    for path, flags in ((folder, {}), (on_disk, {"quant": "q8_0"})):
        with pytest.raises(UsageError, match=r"pearl convert .* -o DIR"):
            wants_ram(path, options(store="disk", **flags))


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("complete", ["-p", "abc ab", "-n", "6", "--temp", "0", "--ignore-eos"]),
        ("chat", ["-p", "abc ab", "-n", "6", "--temp", "0", "-st", "--chat-template", "{{ messages[0].content }}"]),
    ],
)
def test_commands_answer_from_a_folder(
    command: str, extra: list[str], folder: Path, on_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["-t", "1", "-c", "32", *extra]
    assert run([command, "-m", str(on_disk), *common]) == 0
    expected = capsys.readouterr().out
    assert run([command, "-m", str(folder), "--quant", "q8_0", *common]) == 0
    out, err = capsys.readouterr()
    assert out == expected
    assert "in memory" in err


def test_bench_eval_and_trace_run_from_a_folder(
    folder: Path, on_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abc abab cab bca " * 8)
    results = []
    for model in (["-m", str(on_disk)], ["-m", str(folder), "--quant", "q8_0"]):
        common = [*model, "-t", "1", "-c", "16"]
        assert run(["eval", *common, "-f", str(text), "--json"]) == 0
        scored = json.loads(capsys.readouterr().out)
        assert run(["trace", *common, "-f", str(text), "-o", str(tmp_path / "t.csv"), "--max-tokens", "9"]) == 0
        results.append((scored["perplexity"], (tmp_path / "t.csv").read_text().splitlines()[3:]))
        assert run(["bench", *common, "-p", "4", "-n", "3", "-r", "1", "-o", "json"]) == 0
        assert [record["state"] for record in json.loads(capsys.readouterr().out)] == ["resident", "resident"]
    assert results[0] == results[1]


def test_info_and_plan_show_what_a_run_would_hold(
    folder: Path, on_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["info", str(on_disk), "--json"]) == 0
    disk = json.loads(capsys.readouterr().out)
    assert run(["info", "-m", str(folder), "--quant", "q8_0", "--json"]) == 0
    ram = json.loads(capsys.readouterr().out)
    same = ["architecture", "parameters_total", "experts", "roles", "files", "file_bytes", "supported"]
    assert {key: ram[key] for key in same} == {key: disk[key] for key in same}
    assert ram["floor_bytes"] > disk["experts"]["total_bytes"]
    assert run(["plan", str(folder), "--quant", "q8_0", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["expert_slot_bytes"] == 0
    assert plan["experts_kept"] == plan["experts"]
    with open_model(folder, options(quant="q8_0")) as model:
        dense = plan["weight_bytes"] - plan["expert_total_bytes"]
        assert 0 < dense < model_bytes(model)


def test_a_folder_tokenizes_as_what_it_becomes(
    folder: Path, on_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for model in (on_disk, folder):
        assert run(["tokenize", "-m", str(model), "-p", "abc abab<|end|>", "--special"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["info", "--quant", "q8_0"], "name one model"),
        (["complete", "-m", "HF", "--quant", "q9", "-p", "a"], "'q9'"),
        (["complete", "-m", "DISK", "--quant", "q4_0", "-p", "a"], "already quantised"),
        (["complete", "-m", "HF", "--store", "disk", "-p", "a"], "pearl convert"),
        (["info", "HF", "--verify"], "--verify"),
        (["bench", "-m", "HF", "--vs", "llama-bench=/bin/true"], "--vs-model"),
    ],
)
def test_what_does_not_fit_is_one_line(
    args: list[str], says: str, folder: Path, on_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"HF": str(folder), "DISK": str(on_disk)}
    assert run([places.get(arg, arg) for arg in args]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert says in lines[-1]
    assert "Traceback" not in "".join(lines)
