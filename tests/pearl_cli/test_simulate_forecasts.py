"""`pearl simulate` with forecasts: better eviction with better knowledge, the table of ablations, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from models.errors import FileError, UsageError
from pearl_cli.commands.simulate import command
from pearl_cli.predict.predictor_file import save_predictor
from pearl_cli.trace import TraceWriter
from tests.pearl_cli.predict.forecast_files import random_predictor

TOKENS, LAYERS, EXPERTS, K = 300, 2, 12, 2


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A trace with hot experts that change every 60 tokens, and router inputs that announce the next event."""
    rng = np.random.default_rng(0)
    trace, inputs = tmp_path / "t.csv", tmp_path / "t.npz"
    ids = np.empty((TOKENS, LAYERS, K), np.int64)
    for token in range(TOKENS):
        for layer in range(LAYERS):
            heat = np.roll(1.0 / np.arange(1, EXPERTS + 1), 5 * (token // 60))
            ids[token, layer] = rng.choice(EXPERTS, K, replace=False, p=heat / heat.sum())
    with trace.open("w") as out:
        writer = TraceWriter(out, "toy", "olmoe", EXPERTS, K, [1000] * LAYERS, [10] * LAYERS)
        for token in range(TOKENS):
            for layer in range(LAYERS):
                writer.write(0, 1, token, layer, ids[token, layer], np.full(K, 0.5, np.float32))
    hidden = np.zeros((TOKENS, LAYERS, EXPERTS), np.float16)
    for layer in range(LAYERS):
        np.put_along_axis(hidden[:-1, layer], ids[1:, layer], 1.0, axis=1)
    steps = np.arange(TOKENS, dtype=np.int32)
    np.savez(inputs, hidden=hidden, turn=np.zeros(TOKENS, np.int32), step=steps, token=steps % 7,
             layers=np.arange(LAYERS), fingerprint=np.array("abc"))  # fmt: skip
    return trace, inputs


def simulate(trace: Path, *arguments: str) -> object:
    result = CliRunner().invoke(command, [str(trace), "--json", *arguments], catch_exceptions=False)
    return json.loads(result.output)


def announced(path: Path, fingerprint: str = "abc") -> Path:
    """A predictor that passes on what the router input says of the next event."""
    card, arrays = random_predictor(
        layers=(0, 1), num_experts=EXPERTS, hidden_size=EXPERTS, width=EXPERTS, horizon=1, recall=(1.0,),
        fingerprint=fingerprint,
    )  # fmt: skip
    for layer in range(LAYERS):
        arrays[f"blk.{layer}.w1"] = arrays[f"blk.{layer}.w2"] = np.eye(EXPERTS, dtype=np.float32) * 4
        arrays[f"blk.{layer}.b1"] *= 0
        arrays[f"blk.{layer}.b2"][:] = -4
        arrays[f"blk.{layer}.c"] *= 0
    save_predictor(path, card, arrays)
    return path


def test_a_forecast_beats_recency_and_not_the_future(files: tuple[Path, Path], tmp_path: Path) -> None:
    trace, inputs = files
    predictor = ["--predictor", str(announced(tmp_path / "p.gguf")), "--hidden", str(inputs)]
    rates = {
        name: simulate(trace, "--evict", name, "--rules", "engine", "--budget", "34%", *more)["hit_rate"]  # type: ignore[index]
        for name, more in {"lru": [], "pearl": predictor, "belady": []}.items()
    }
    assert rates["lru"] + 0.03 < rates["pearl"] < rates["belady"]


def test_better_oracles_wait_less(files: tuple[Path, Path]) -> None:
    common = ["--evict", "lru", "--budget", "34%", "--bandwidth", "10000", "--compute-ms", "200"]
    stalls = [
        simulate(files[0], *common, "--predictor", name)["stall_ms_per_token"]  # type: ignore[index]
        for name in ("none", "oracle:0.5", "oracle:1")
    ]
    assert stalls[0] > 1.3 * stalls[1] > 1.3 * stalls[2]
    assert stalls[2] == pytest.approx(0.0, abs=1.0)


@pytest.mark.parametrize("predictor", ["ema", "token-table", "oracle:0.8:0.5"])
def test_figures_of_the_cost_model(files: tuple[Path, Path], predictor: str) -> None:
    record = simulate(files[0], "--evict", "pearl", "--predictor", predictor, "--hidden", str(files[1]))
    assert isinstance(record, dict)
    assert record["rules"] == "engine"
    assert record["token_ms_p99"] >= record["token_ms_p50"] > 0
    assert record["tokens_per_s"] > 0
    assert record["read_bytes_decode"] >= record["demand_bytes_per_token"] * TOKENS - 1e-6


def test_the_table_of_ablations(files: tuple[Path, Path], tmp_path: Path) -> None:
    predictor = ["--predictor", str(announced(tmp_path / "p.gguf")), "--hidden", str(files[1])]
    records = simulate(files[0], "--ablate", "--budget", "34%", *predictor)
    assert isinstance(records, list)
    rows = {record["ablation"]: record for record in records}
    assert list(rows) == ["full", "without controller", "without predictor", "lru"]
    assert rows["full"]["hit_rate"] > rows["without predictor"]["hit_rate"]
    assert rows["without controller"]["hit_rate"] == rows["lru"]["hit_rate"]
    assert rows["lru"]["prefetch_bytes_per_token"] == rows["without predictor"]["prefetch_bytes_per_token"] == 0
    assert rows["full"]["stall_ms_per_token"] < rows["lru"]["stall_ms_per_token"]


def test_refusals(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = announced(tmp_path / "p.gguf", fingerprint="other")
    with pytest.raises(UsageError, match="reads router inputs"):
        simulate(files[0], "--predictor", str(path))
    with pytest.raises(FileError, match="another model"):
        simulate(files[0], "--predictor", str(path), "--hidden", str(files[1]))
    with pytest.raises(UsageError, match="needs --rules engine"):
        simulate(files[0], "--evict", "pearl", "--rules", "pool")
    with pytest.raises(UsageError, match="no such file"):
        simulate(files[0], "--predictor", "nonsense")
    with pytest.raises(UsageError, match="needs token ids"):
        simulate(files[0], "--predictor", "token-table")
