"""`pearl complete`: the JSON contract, seeds, budgets, stop strings, bad input."""

import json

import pytest
from tiny_gguf import write_gguf

from pearl_cli.__main__ import main


def complete(capsys, path, *args):
    assert main(["complete", "-m", str(path), *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_fields_and_greedy_repeatability(tiny_path, capsys):
    first = complete(capsys, tiny_path, "-p", "abc", "-n", "12", "--temp", "0", "--ignore-eos")
    assert set(first) >= {"prompt_ids", "ids", "text", "finish_reason", "timings"}
    assert len(first["ids"]) == 12
    assert first["finish_reason"] == "length"
    assert first["timings"]["predicted_n"] == 12
    again = complete(capsys, tiny_path, "-p", "abc", "-n", "12", "--temp", "0", "--ignore-eos")
    assert again["ids"] == first["ids"]


@pytest.mark.parametrize("extra", [["--budget", "60%"], ["--budget", "30%"], ["-t", "1"], ["-ub", "1"], ["-ub", "7"]])
def test_budget_threads_and_chunks_do_not_change_ids(tiny_path, capsys, extra):
    args = ["-p", "the quick brown fox", "-n", "20", "--temp", "0", "--ignore-eos"]
    assert complete(capsys, tiny_path, *args, *extra)["ids"] == complete(capsys, tiny_path, *args)["ids"]


def test_a_budget_really_streams(tiny_path, capsys):
    done = complete(capsys, tiny_path, "-p", "abcdef", "-n", "20", "--temp", "0", "--ignore-eos", "--budget", "30%")
    assert done["timings"]["miss_bytes"] > 0
    assert done["timings"]["hit_rate"] < 1


def test_a_printed_seed_reproduces(tiny_path, capsys):
    args = ["-p", "abc", "-n", "16", "--temp", "1.5", "--top-k", "0", "--ignore-eos"]
    drawn = complete(capsys, tiny_path, *args)
    again = complete(capsys, tiny_path, *args, "-s", str(drawn["seed"]))
    assert again["ids"] == drawn["ids"]
    other = complete(capsys, tiny_path, *args, "-s", str((drawn["seed"] + 1) % 2**32))
    assert other["ids"] != drawn["ids"]


@pytest.mark.parametrize(("n", "told"), [("-1", True), ("60", True), ("13", False), ("4", False)])
def test_a_context_that_ends_the_text_is_told_of_below_it(tiny_path, capsys, n, told):
    args = ["complete", "-m", str(tiny_path), "-p", "abc", "-c", "16", "-n", n, "--temp", "0", "--ignore-eos"]
    assert main(args) == 0
    err = capsys.readouterr().err
    assert ("the context of 16 tokens is full, so that the text ends here; a larger -c" in err) == told


def test_stop_string_is_not_shown(tiny_path, capsys):
    whole = complete(capsys, tiny_path, "-p", "abc", "-n", "30", "--temp", "0", "--ignore-eos")["text"]
    stop = whole[3:5]
    done = complete(capsys, tiny_path, "-p", "abc", "-n", "30", "--temp", "0", "--ignore-eos", "-r", stop)
    assert done["text"] == whole[: whole.index(stop)]
    assert done["finish_reason"] == "stop"


def test_streamed_text_equals_json_text(tiny_path, capsys):
    args = ["complete", "-m", str(tiny_path), "-p", "abc", "-n", "10", "--temp", "0", "--ignore-eos"]
    assert main(args) == 0
    streamed = capsys.readouterr().out
    assert main([*args, "--json"]) == 0
    assert streamed == json.loads(capsys.readouterr().out)["text"] + "\n"


def test_special_tokens_only_on_request(tiny_path, capsys):
    plain = complete(capsys, tiny_path, "-p", "<|end|>", "-n", "1")
    special = complete(capsys, tiny_path, "-p", "<|end|>", "-n", "1", "--special")
    assert len(special["prompt_ids"]) < len(plain["prompt_ids"])


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["-p", "x", "--ram", "1MiB"], "below the floor"),
        (["-p", "x", "--budget", "1KiB"], "below the floor"),
        (["-p", "x", "-c", "100000"], "trained for 128"),
        (["-p", "x" * 500, "-n", "1"], "tokens does not fit the context of 128; shorten it"),
        (["-f", "no-such-file.txt"], "no-such-file.txt"),
        (["-p", "x", "-f", "y"], "either"),
    ],
)
def test_faults_are_one_line(tiny_path, capsys, args, part):
    assert main(["complete", "-m", str(tiny_path), *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    *notes, last = err.strip().splitlines()
    assert last.endswith(part) if part.endswith("shorten it") else part in last
    assert all("compiling" in note for note in notes)


def test_the_last_newline_of_a_file_is_no_part_of_the_prompt(tiny_path, tmp_path, capsys):
    ids = []
    for text in ("ab", "ab\n", "ab\r\n", "ab\n\n"):
        (tmp_path / "prompt.txt").write_bytes(text.encode())
        assert main(["complete", "-m", str(tiny_path), "-f", str(tmp_path / "prompt.txt"), "-n", "1", "--json"]) == 0
        ids.append(json.loads(capsys.readouterr().out)["prompt_ids"])
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[3]) == len(ids[0]) + 1


@pytest.mark.parametrize("command", [["complete", "-m"], ["tokenize", "-m"]])
def test_a_model_without_a_vocabulary_is_named(tmp_path, capsys, command):
    path = write_gguf(tmp_path / "bare.gguf", {"general.architecture": "olmoe"}, [])
    assert main([*command, str(path), "-p", "x"]) == 2
    err = capsys.readouterr().err
    assert "bare.gguf" in err
    assert "tokenizer.ggml.model is missing" in err


def test_truncated_model(tiny_path, tmp_path, capsys):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_path.read_bytes()[:-1])
    assert main(["complete", "-m", str(cut), "-p", "x"]) == 2
    err = capsys.readouterr().err
    assert "cut.gguf" in err
    assert err.strip().count("\n") == 0


def test_the_seed_of_a_streamed_reply_is_printed_and_reproduces_it(tiny_path, capsys):
    args = ["complete", "-m", str(tiny_path), "-p", "abc", "-n", "12", "--temp", "1.5", "--ignore-eos"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    seed = err.strip().splitlines()[-1].removeprefix("seed ")
    assert main([*args, "-s", seed]) == 0
    assert capsys.readouterr().out == out
