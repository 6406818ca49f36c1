"""`pearl bench`: the fields scripts rely on, cold and warm records, equal ids at every budget, the peer's turns."""

import csv
import io
import json
import stat

import pytest

from pearl_cli.__main__ import main
from pearl_cli.bench.record import _percentile
from pearl_cli.bench.workload import Workload
from tests.tiny_models import tiny_model, write_gguf
from tests.tiny_vocab import byte_level

CONTRACT = {
    "model_filename", "model_type", "model_size", "n_threads", "n_prompt", "n_gen", "avg_ns", "stddev_ns", "avg_ts",
    "stddev_ts", "samples_ns", "samples_ts", "backend", "evict", "predictor", "routing", "budget_bytes",
    "expert_bytes_total", "hit_rate", "miss_bytes_per_token", "prefetch_bytes_per_token", "prefetch_precision",
    "stall_ms_per_token", "ttft_ms", "itl_ms_p50", "itl_ms_p99", "peak_rss_bytes", "kernel_gb_s", "read_gb_s",
    "experts_held", "experts_total",
}  # fmt: skip


def bench(capsys, path, *args):
    assert main(["bench", "-m", str(path), "-r", "2", "-o", "json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def test_contract_fields_and_counts(tiny_path, capsys):
    records = bench(capsys, tiny_path, "-p", "16", "-n", "8")
    assert [record["test"] for record in records] == ["pp16", "tg8"]
    for record in records:
        assert set(record) >= CONTRACT
        assert len(record["samples_ns"]) == 2
        assert record["peak_rss_bytes"] > 0
    assert len(records[1]["ids"]) == 8
    assert records[0]["itl_ms_p50"] is None
    assert records[1]["itl_ms_p50"] <= records[1]["itl_ms_p99"]


def test_a_budget_gives_a_cold_and_a_warm_record_with_the_same_ids(tiny_path, capsys):
    whole = bench(capsys, tiny_path, "-p", "0", "-n", "12")
    streamed = bench(capsys, tiny_path, "-p", "0", "-n", "12", "--budget", "40%")
    assert [record["state"] for record in whole + streamed] == ["resident", "cold", "warm"]
    assert all(record["ids"] == whole[0]["ids"] for record in streamed)
    assert whole[0]["hit_rate"] == 1.0
    cold, warm = streamed
    assert 0 < cold["hit_rate"] < 1
    assert cold["miss_bytes_per_token"] > 0
    assert warm["budget_bytes"] < whole[0]["budget_bytes"]
    assert whole[0]["experts_held"] == whole[0]["experts_total"] == warm["experts_total"]
    assert 0.2 < warm["experts_held"] / warm["experts_total"] <= 0.4


def test_layers_without_experts_are_not_counted(tmp_path, capsys):
    vocabulary = byte_level("gpt-2", ["t h"])
    keys = {key: getattr(value, "tolist", lambda value=value: value)() for key, value in vocabulary.items()}
    model = tiny_model("glm4moe", vocab_size=len(vocabulary["tokenizer.ggml.tokens"]))
    path = write_gguf(model, tmp_path / "m.gguf", "glm4moe", keys)
    layers = model.config.num_hidden_layers - model.config.first_k_dense_replace
    assert layers < model.config.num_hidden_layers
    for budget in ((), ("--budget", "50%")):
        (*_, record) = bench(capsys, path, "-p", "0", "-n", "2", *budget)
        assert record["experts_total"] == layers * model.config.n_routed_experts
        assert record["experts_held"] <= record["experts_total"]


@pytest.mark.parametrize("flag", ["-t", "-b", "-ub"])
def test_a_list_where_a_run_has_one_value_is_refused_in_these_words(flag, tiny_path, capsys):
    assert main(["bench", "-m", str(tiny_path), flag, "1,2"]) == 2
    assert "'1,2' is a list and a run has one value; run pearl once for each" in capsys.readouterr().err


def test_forecasts_and_waits_are_counted(tiny_path, capsys):
    args = ["-p", "0", "-n", "24", "--budget", "60%", "--evict", "lru", "--predictor"]
    none, ahead = (bench(capsys, tiny_path, *args, name)[1] for name in ("none", "ema"))
    counted = ("prefetch_bytes_per_token", "prefetch_wasted_bytes_per_token", "promoted_per_token")
    assert [none[name] for name in counted] == [0, 0, 0]
    assert none["queue_wait_ms_per_token"] > 0
    assert ahead["prefetch_bytes_per_token"] > 0
    assert ahead["promoted_per_token"] > 0 or ahead["prefetch_wasted_bytes_per_token"] > 0


def test_other_formats(tiny_path, capsys):
    args = ["bench", "-m", str(tiny_path), "-p", "4,8", "-n", "0", "-r", "1"]
    assert main([*args, "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["test"] for row in rows] == ["pp4", "pp8"]
    assert main([*args, "-o", "jsonl"]) == 0
    assert [json.loads(line)["n_prompt"] for line in capsys.readouterr().out.splitlines()] == [4, 8]
    assert main(args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1


def test_a_real_text_is_continued_by_the_model_itself(tiny_path, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and said nothing at all")
    (record,) = bench(capsys, tiny_path, "-p", "0", "-n", "6", "-d", "10", "--prompt-file", str(text))
    assert record["test"] == "tg6 @ d10"
    assert main(["bench", "-m", str(tiny_path), "-p", "100", "-n", "0", "--prompt-file", str(text)]) == 2
    assert "--prompt-file" in capsys.readouterr().err


def test_a_test_longer_than_the_context_is_refused(tiny_path, capsys):
    assert main(["bench", "-m", str(tiny_path), "-p", "0", "-n", "5000"]) == 2
    assert "raise -c" in capsys.readouterr().err


def test_the_peer_runs_in_turn(tiny_path, tmp_path, capsys):
    program, log = tmp_path / "llama-bench", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\necho \'[{{"avg_ts": 2.0}}]\'\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (record,) = bench(capsys, tiny_path, "-p", "0", "-n", "4", "--vs", f"llama-bench={program}")
    assert record["peer_samples_ts"] == [2.0, 2.0]
    assert record["ratio_to_peer"] == pytest.approx(record["median_ts"] / 2)
    assert log.read_text().count(f"-m {tiny_path} ") == 2


def test_a_peer_that_gives_no_figure(tiny_path, tmp_path, capsys):
    for index, says in enumerate(("", "[]", '[{"avg_ts": null}]')):
        program = tmp_path / f"llama-bench-{index}"
        program.write_text(f"#!/bin/sh\necho '{says}'\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        assert main(["bench", "-m", str(tiny_path), "-p", "0", "-n", "2", "--vs", f"llama-bench={program}"]) == 1
        assert f"pearl: --vs: {program} gave no figure as JSON" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["other=x", "llama-bench", "llama-bench=/no/such/program"])
def test_a_peer_that_is_none(tiny_path, capsys, flag):
    assert main(["bench", "-m", str(tiny_path), "--vs", flag]) == 2
    assert "--vs" in capsys.readouterr().err


def test_a_peer_is_the_file_that_was_named_and_can_be_run(tiny_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "true"  # there is another of that name
    program.write_text("#!/bin/sh\necho '[{\"avg_ts\": 2.0}]'\n")
    line = ["bench", "-m", str(tiny_path), "-p", "4", "-n", "0", "-r", "1", "-o", "json", "--vs", "llama-bench=true"]
    assert main(line) == 2
    assert f"--vs: {program} cannot be run" in capsys.readouterr().err
    program.chmod(0o755)
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)[0]["peer_samples_ts"] == [2.0]
    assert main([*line, "--vs-model", "none.gguf"]) == 2
    assert "--vs-model none.gguf: no such file" in capsys.readouterr().err


def test_random_tokens_are_seeded_and_never_one_repeated():
    load = Workload(vocab_size=1000, seed=3)
    assert load.prompt(50) == Workload(1000, 3).prompt(50) != Workload(1000, 4).prompt(50)
    assert len(set(load.continuation(50))) > 30


def test_percentiles_are_of_the_samples():
    assert [_percentile([1.0, 2.0, 3.0, 4.0], p) for p in (1, 50, 75, 99, 100)] == [1.0, 2.0, 3.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--ablate", ""], "names no piece"),
        (["--ablate", " ,"], "names no piece"),
        (["--ablate", "evict", "--vs", "llama-bench=x"], "--vs is of one setting"),
        (["--ablate", "evict", "--price", "x.txt"], "--price is of one setting"),
        (["-p", "0", "-n", "0"], "nothing to measure"),
        (["--force-text"], "--prompt-file"),
        (["--vs-model", "x.gguf"], "--vs llama-bench=PATH"),
        (["--vs", ""], "--vs llama-bench=PATH"),
        (["--timeline", "none/t.json"], "--timeline none/t.json: the folder none does not exist"),
        (["--prompt-file", "none.txt"], "--prompt-file none.txt: No such file"),
        (["--usage", "none.csv"], "--usage none.csv: No such file"),
        (["-p", ""], "write 512, or 128,512 for several"),
        (["--ablate", "evict=foo"], "--ablate evict=foo: 'foo' is no --evict; write one of auto,"),
        (["--ablate", "evict+routing=foo"], "--ablate routing=foo: 'foo' is no --routing; write one of exact,"),
        (["--ablate", "predictor=foo"], "--predictor foo: no such file"),
        (["--route-trace", "none.csv", "-p", "4"], "--route-trace none.csv: No such file"),
    ],
)
def test_what_cannot_be_measured_is_said_before_the_work(tiny_path, capsys, args, words):
    assert main(["bench", "-m", str(tiny_path), *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--routing", "psr", "--budget", "50%"], "--price: the text has 3 tokens, fewer than one window of 128"),
        ([], "--price: exact routing costs nothing"),
    ],
)
def test_a_price_that_cannot_be_had_is_told_before_the_measuring(
    tiny_path, tmp_path, capsys, monkeypatch, flags, words
):
    monkeypatch.setattr("pearl_cli.bench.run.measure", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "short.txt").write_text("abc")
    assert main(["bench", "-m", str(tiny_path), "-n", "2", *flags, "--price", str(tmp_path / "short.txt")]) == 2
    assert words in capsys.readouterr().err


def test_the_figures_are_shown_before_a_timeline_that_fails(tiny_path, tmp_path, capsys, monkeypatch):
    def full(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pearl_cli.timeline.Timeline.write", full)
    line = ["bench", "-m", str(tiny_path), "-p", "0", "-n", "2", "-r", "1", "-o", "json", "--timeline"]
    assert main([*line, str(tmp_path / "t.json")]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["test"] == "tg2"
    assert err.endswith("t.json: No space left on device\n")


def test_a_trace_that_nothing_goes_by_is_told_of(tiny_path, tmp_path, capsys):
    text, usage = tmp_path / "t.txt", tmp_path / "u.csv"
    text.write_text("abc")
    assert main(["trace", "-m", str(tiny_path), "-f", str(text), "-o", str(usage)]) == 0
    line = ["bench", "-m", str(tiny_path), "-p", "0", "-n", "2", "-r", "1", "--budget", "50%", "--usage", str(usage)]
    for flags, told in (([], 1), (["--evict", "static"], 0), (["--ablate", "evict=static"], 0)):
        capsys.readouterr()
        assert main([*line, *flags]) == 0
        assert capsys.readouterr().err.count("--usage has no effect") == told
