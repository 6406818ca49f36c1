"""The replay gives the published curves to the last digit, the checked per-layer rates, and a hand-worked trace."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from pearl_cli.__main__ import main
from pearl_cli.commands.simulate import command
from pearl_cli.residency.eviction import make_policy
from pearl_cli.simulate.engine_rules import replay_bypass, replay_engine
from pearl_cli.simulate.pool import replay_pool
from pearl_cli.trace import TraceWriter, read_trace

# Per-layer slots, token by token, decoding only: lru, lfu, lfru as recomputed from the public traces.
ENGINE_RATES = {
    ("qwen", 8): (0.429, 0.459, 0.459),
    ("qwen", 32): (0.818, 0.821, 0.834),
    ("gemma", 16): (0.615, 0.645, 0.651),
    ("gemma", 51): (0.919, 0.921, 0.923),
}
BYPASS_RATES = {("qwen", 8): 0.617, ("qwen", 32): 0.918, ("gemma", 16): 0.775}
CURVE_BUDGETS_MIB = ("250", "1000", "4000")
CURVE_POLICIES = {
    "lru": ("lru", False),
    "lfu": ("lfu", False),
    "layer": ("lru", True),
    "layerlfu": ("lfu", True),
    "belady": (None, False),
}


@pytest.fixture(scope="module", params=["qwen", "gemma"])
def recorded(request, shared_dir):
    folder = shared_dir / "data" / "route_traces"
    return request.param, read_trace(folder / f"{request.param}.route.csv"), folder / f"{request.param}-curve.csv"


def test_pool_replay_equals_published_curves(recorded):
    name, trace, curve = recorded
    rows = [row for row in csv.DictReader(curve.read_text().splitlines()) if row["policy"] in CURVE_POLICIES]
    rows = [row for row in rows if row["budget_mib"] in CURVE_BUDGETS_MIB]
    assert len(rows) == len(CURVE_POLICIES) * len(CURVE_BUDGETS_MIB)
    for row in rows:
        kind, per_layer = CURVE_POLICIES[row["policy"]]
        result = replay_pool(trace, int(row["budget_mib"]) << 20, make_policy(kind) if kind else None, per_layer)
        rates = (f"{100 * result.hit_rate:.3f}", f"{100 * result.hit_rate_decode:.3f}")
        assert rates == (row["hit_pct_cum"], row["hit_pct_decode"]), (name, row)
        assert f"{result.read_bytes / 2**20:.1f}" == row["read_mib"], (name, row)


@pytest.mark.parametrize(("name", "slots"), list(ENGINE_RATES))
def test_engine_rules_equal_checked_rates(name, slots, shared_dir):
    trace = read_trace(shared_dir / "data" / "route_traces" / f"{name}.route.csv")
    results = [replay_engine(trace, [slots] * trace.num_layers, make_policy(p)) for p in ("lru", "lfu", "lfru")]
    rates = tuple(round(result.hit_rate_decode, 3) for result in results)
    assert rates == ENGINE_RATES[name, slots]


@pytest.mark.parametrize(("name", "slots"), list(BYPASS_RATES))
def test_belady_with_bypass_equals_checked_rates(name, slots, shared_dir):
    trace = read_trace(shared_dir / "data" / "route_traces" / f"{name}.route.csv")
    assert round(replay_bypass(trace, [slots] * trace.num_layers).hit_rate_decode, 3) == BYPASS_RATES[name, slots]


@pytest.fixture
def hand_trace(tmp_path):
    """One layer, 4 experts of 10 bytes, one a token: decode 0 1 2 0 1 3 0."""
    path = tmp_path / "hand.csv"
    with path.open("w") as out:
        writer = TraceWriter(out, "hand", "olmoe", 4, 1, [10], [100])
        for step, expert in enumerate([0, 1, 2, 0, 1, 3, 0]):
            writer.write(0, 1, step, 0, np.array([expert]), np.array([1.0], np.float32))
    return path


def test_hand_worked_trace(hand_trace):
    # Two slots: LRU evicts in turn and never hits; the future keeps expert 0, and with bypass also 1.
    trace = read_trace(hand_trace)
    assert replay_engine(trace, [2], make_policy("lru")).hits == 0
    assert replay_engine(trace, [2], None).hits == 2
    assert replay_bypass(trace, [2]).hits == 3
    assert replay_pool(trace, 40, make_policy("lru"), per_layer=False).hits == 3


def test_command_reports_fractions_and_bytes(hand_trace):
    result = CliRunner().invoke(command, [str(hand_trace), "--evict", "lru", "--budget", "100%", "--json"])
    record = json.loads(result.output)
    assert (record["lookups"], record["read_bytes"]) == (7, 40)
    assert record["hit_rate"] == record["hit_rate_decode"] == pytest.approx(3 / 7)


def test_one_pool_below_a_tokens_needs_is_warned_about(tmp_path):
    """Two layers of one expert a token: a pool of one expert never hits, however often the same two are used."""
    path = tmp_path / "two.csv"
    with path.open("w") as out:
        writer = TraceWriter(out, "two", "olmoe", 4, 1, [10, 10], [100, 100])
        for step in range(5):
            for layer in range(2):
                writer.write(0, 1, step, layer, np.array([1]), np.array([1.0], np.float32))
    arguments = [str(path), "--evict", "lru", "--scope", "global", "--json", "--budget"]
    small, enough = (CliRunner().invoke(command, [*arguments, budget]) for budget in ("13%", "25%"))
    assert "smaller than the" in small.stderr
    assert json.loads(small.stdout)["hit_rate"] == 0.0
    assert enough.stderr == ""
    assert json.loads(enough.stdout)["hit_rate"] == 0.8


def test_plot_names_every_policy(hand_trace):
    result = CliRunner().invoke(command, [str(hand_trace), "--plot"])
    assert result.exit_code == 0
    assert all(name in result.output for name in ("lru", "lfru", "belady"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "first line"),
        ("# route_trace v1\n# n_expert=4\nturn,phase\n", "n_expert_used"),
        ("# route_trace v1\n# n_layer=1 n_expert=4 n_expert_used=1\n# layer=0 expert_bytes=10\nturn,phase\n", "header"),
        (
            "# route_trace v1\n# n_layer=1 n_expert=4 n_expert_used=1\n# layer=0 expert_bytes=10\n"
            "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n0,1,0,0,0,9,1,0,10\n",
            "does not have",
        ),
        (
            "# route_trace v1\n# n_layer=1 n_expert=4 n_expert_used=1\n# layer=0 expert_bytes=10\n"
            "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n0,1,zero\n",
            "row 1",
        ),
        (
            "# route_trace v1\n# n_layer=1 n_expert=4 n_expert_used=1\n# layer=0 expert_bytes=10\n"
            "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n0,1,nan,0,0,1,1,0,10\n",
            "not finite",
        ),
        ("# route_trace v1\n# n_expert=4\n# layer=0 expert_bytes=ten\n", "whole numbers"),
        (
            "# route_trace v1\n# n_layer=999999999999 n_expert=4 n_expert_used=1\n# layer=0 expert_bytes=10\n"
            "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n0,1,0,0,0,1,1,0,10\n",
            "every layer",
        ),
        ("\udcff\udcfe", "not text"),
    ],
)
def test_bad_traces_are_named(tmp_path, text, message):
    from models.errors import FileError

    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(FileError, match=message):
        read_trace(path)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--bandwidth", "0"], "Invalid value for '--bandwidth': '0' is nothing"),
        (["--plot", "--json"], "--plot draws curves and --json prints something else"),
        (["--plot", "--ablate"], "--plot draws curves and --ablate prints something else"),
        (["--hidden", "none.npz"], "--hidden none.npz: No such file"),
        (["--usage", "none.csv"], "--usage none.csv: No such file"),
        (["--latency-ms", "nan"], "'nan' is no time"),
        (["--compute-ms", "inf"], "inf is not in the range"),
        (["--expert-ms", "-1"], "-1.0 is not in the range"),
        (["--ablate", "--evict", "lru"], "--ablate runs policies of its own"),
    ],
)
def test_flags_that_cannot_be_honoured_are_one_line(hand_trace, capsys, args, words):
    assert main(["simulate", str(hand_trace), *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "is_idle"),
    [(["--evict", "lru"], True), (["--evict", "static"], False), ([], False), (["--split", "uneven"], False)],
)
def test_a_trace_that_nothing_goes_by_is_told_of(hand_trace, capsys, flags, is_idle):
    assert main(["simulate", str(hand_trace), "--usage", str(hand_trace), "--budget", "100%", *flags]) == 0
    assert ("--usage has no effect" in capsys.readouterr().err) is is_idle
