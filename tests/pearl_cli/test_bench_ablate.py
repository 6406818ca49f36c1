"""`pearl bench --ablate` and `--route-trace`: variants by name, pieces that change no token, routing as recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from models.errors import UsageError
from pearl_cli.bench.ablate import variants
from pearl_cli.bench.workload import Workload
from pearl_cli.commands.bench import command
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.recording import RecordingProvider
from pearl_cli.sizes import Size
from pearl_cli.trace import TraceWriter, read_trace
from tests.tiny_gguf import tiny_moe

LAYERS, EXPERTS, K = 3, 8, 2


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_moe("qwen3moe", num_layers=LAYERS, num_experts=EXPERTS, num_experts_per_tok=K)
    return model.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


def write_trace(path: Path, num_experts: int = EXPERTS) -> np.ndarray:
    """5 prompt and 20 decoded tokens; returns ids [25, LAYERS, K]."""
    rng = np.random.default_rng(3)
    ids = np.stack([[rng.choice(EXPERTS, K, replace=False) for _ in range(LAYERS)] for _ in range(25)])
    with path.open("w") as out:
        writer = TraceWriter(out, "toy", "qwen3moe", num_experts, K, [100] * LAYERS, [1] * LAYERS)
        for token in range(25):
            for layer in range(LAYERS):
                writer.write(0, int(token >= 5), token, layer, ids[token, layer], np.array([0.7, 0.3], np.float32))
    return ids


def test_variants_by_name() -> None:
    options = RunOptions(evict="pearl", predictor="ema")
    chosen = variants(options, "evict,evict=lfru,predictor,reorder,chunk")
    assert list(chosen) == ["full", "evict=lru", "evict=lfru", "predictor=none", "no reorder", "no chunk"]
    assert chosen["full"] is options
    assert chosen["evict=lru"].evict == "lru"
    assert (chosen["predictor=none"].predictor, chosen["predictor=none"].evict) == ("none", "auto")
    assert chosen["no reorder"].switched_off == ("reorder",)


def test_all_with_all_is_the_table_of_both() -> None:
    options = RunOptions(predictor="oracle:0.85", budget=Size(percent=50))
    chosen = variants(options, "evict=all+predictor=all", floor_bytes=7)
    names = ["none", "next-gate", "token-table", "ema", "oracle:0.85"]
    evicts = ["lru", "lfu", "lfru", "random", "least-stale", "pearl"]  # static needs --usage
    expected = {f"evict={evict} predictor={name}" for evict in evicts for name in names}
    assert set(chosen) == {"full", "evict=on-demand predictor=none", *expected}
    on_demand = chosen["evict=on-demand predictor=none"]
    assert (on_demand.budget, on_demand.predictor) == (Size(n_bytes=7), "none")
    by_forecast = chosen["evict=pearl predictor=none"]  # its own forecast stays, without fetching
    assert (by_forecast.evict, by_forecast.predictor) == ("pearl", "auto")
    assert "evict=static" in variants(RunOptions(usage=Path("t.csv")), "evict=all")
    both = variants(options, "evict=lfu+chunk")["evict=lfu no chunk"]
    assert (both.evict, both.predictor, both.switched_off) == ("lfu", "oracle:0.85", ("chunk",))


def test_on_demand_keeps_nothing_and_every_policy_says_the_same(model_path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "r.csv"
    write_trace(trace)
    arguments = ["-m", str(model_path), "-t", "1", "-c", "64", "-p", "0", "-n", "4", "-r", "1", "-o", "json"]
    more = ["--budget", "50%", "--usage", str(trace), "--split", "uneven", "--ablate", "evict=all"]
    result = CliRunner().invoke(command, [*arguments, *more], catch_exceptions=False)
    records = {r["ablation"]: r for r in json.loads(result.stdout) if r["state"] == "warm"}
    assert len(records) == 9
    assert len({tuple(record["ids"]) for record in records.values()}) == 1
    on_demand = records.pop("evict=on-demand")
    assert on_demand["hit_rate"] == 0
    assert all(record["miss_bytes_per_token"] < on_demand["miss_bytes_per_token"] for record in records.values())


@pytest.mark.parametrize("names", ["speed", "reorder=1", "evict,threads=2"])
def test_other_names_are_refused(names: str) -> None:
    with pytest.raises(UsageError, match="pieces are evict, predictor"):
        variants(RunOptions(), names)


def test_every_variant_gives_the_same_tokens_cold_and_warm(model_path: Path) -> None:
    arguments = ["-m", str(model_path), "-t", "1", "-c", "64", "-p", "0", "-n", "12", "-r", "1", "-o", "json"]
    pieces = "evict,predictor,reorder,preempt,chunk"
    more = ["--budget", "50%", "--predictor", "next-gate", "--evict", "pearl", "--ablate", pieces]
    result = CliRunner().invoke(command, [*arguments, *more], catch_exceptions=False)
    records = json.loads(result.stdout)
    assert [(r["ablation"], r["state"]) for r in records][:2] == [("full", "cold"), ("full", "warm")]
    assert len(records) == 2 * 6
    assert len({tuple(record["ids"]) for record in records}) == 1
    by_name = {record["ablation"]: record for record in records if record["state"] == "cold"}
    assert by_name["predictor=none"]["prefetch_bytes_per_token"] == 0 < by_name["full"]["prefetch_bytes_per_token"]
    assert all(record["miss_bytes_per_token"] > 0 for record in by_name.values())


def test_nothing_to_ablate_when_everything_is_resident(model_path: Path) -> None:
    with pytest.raises(UsageError, match="every expert is in memory"):
        CliRunner().invoke(
            command, ["-m", str(model_path), "-c", "64", "-p", "0", "-n", "4", "-r", "1", "--ablate", "evict"],
            catch_exceptions=False,
        )  # fmt: skip


def test_recorded_routing_is_what_runs_again_and_again(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    ids = write_trace(path)
    options = RunOptions(threads=1, ctx_size=64, budget=Size(percent=50), route_trace=path)
    with open_engine(model_path, options) as opened:
        recorder = opened.engine.provider = RecordingProvider(opened.controller, opened.backend, keep_hidden=False)
        opened.engine.prefill([1, 2, 3])
        for token in range(25):
            opened.engine.decode_step(token)
    ran = [np.stack([layer.topk_ids for layer in call.layers], axis=1) for call in recorder.calls]
    np.testing.assert_array_equal(ran[0], ids[:3])
    np.testing.assert_array_equal(np.concatenate(ran[1:]), ids[[5 + i % 20 for i in range(25)]])
    np.testing.assert_allclose(recorder.calls[1].layers[0].topk_weights, [[0.7, 0.3]])


def test_a_perfect_oracle_leaves_no_demand_behind(model_path: Path, tmp_path: Path) -> None:
    """With routing known beforehand, all misses but those of the first layer and token have been forecast."""
    path = tmp_path / "r.csv"
    write_trace(path)
    options = RunOptions(
        threads=1, ctx_size=64, budget=Size(percent=60), route_trace=path, predictor="oracle:1", evict="lru"
    )
    with open_engine(model_path, options) as opened:
        opened.engine.prefill([1, 2, 3])
        before = opened.controller.totals
        for token in range(40):
            opened.engine.decode_step(token)
        done = opened.controller.totals - before
    assert done.wasted_prefetch_bytes == 0
    assert done.misses - done.promoted <= K
    assert done.promoted or done.useful_prefetch_bytes  # which of the two is the disk's to say


def test_a_trace_of_another_shape_is_refused(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    write_trace(path, num_experts=16)
    assert read_trace(path).num_experts == 16
    with pytest.raises(UsageError, match="3 layers of 16 experts, the model 3 of 8"):
        open_engine(model_path, RunOptions(threads=1, ctx_size=64, route_trace=path))


def test_a_forced_text_goes_on_where_the_prompt_ended() -> None:
    workload = Workload(100, 0, list(range(20)))
    assert workload.continuation(5, after=3) == [3, 4, 5, 6, 7]
    with pytest.raises(UsageError, match="holds 20 tokens"):
        workload.continuation(18, after=3)


def test_an_uneven_split_goes_by_a_trace_of_this_model(model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    with path.open("w") as out:  # layer 1 uses two experts only
        writer = TraceWriter(out, "toy", "qwen3moe", EXPERTS, K, [100] * LAYERS, [1] * LAYERS)
        rng = np.random.default_rng(0)
        for token in range(40):
            for layer in range(LAYERS):
                ids = rng.choice(2 if layer == 1 else EXPERTS, K, replace=False)
                writer.write(0, 1, token, layer, ids, np.array([0.7, 0.3], np.float32))
    options = RunOptions(threads=1, ctx_size=64, budget=Size(percent=60), usage=path, split="uneven", evict="static")
    with open_engine(model_path, options) as opened:
        capacities = opened.plan.slots.capacities
        opened.engine.prefill([1, 2, 3])
    with open_engine(model_path, RunOptions(threads=1, ctx_size=64, budget=Size(percent=60))) as even:
        assert sum(even.plan.slots.capacities) == sum(capacities)
        assert even.plan.slots.n_bytes == opened.plan.slots.n_bytes
    assert capacities[1] == K < min(capacities[0], capacities[2])
    with pytest.raises(UsageError, match="--split uneven goes by recorded routing"):
        open_engine(model_path, RunOptions(threads=1, ctx_size=64, split="uneven"))
    write_trace(path, num_experts=16)
    with pytest.raises(UsageError, match="3 layers of 16 experts, the model 3 of 8"):
        open_engine(model_path, RunOptions(threads=1, ctx_size=64, usage=path, split="uneven"))
