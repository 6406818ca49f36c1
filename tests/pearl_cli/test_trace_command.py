"""`pearl trace`: every token and layer once, phases, chat texts, router inputs; engine counters equal the replay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from models.errors import FileError, UsageError
from pearl_cli.commands.trace import command
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from pearl_cli.predict.ema import EmaNextUse
from pearl_cli.predict.train_data import load_recorded
from pearl_cli.recording import RecordingProvider
from pearl_cli.residency.eviction import make_policy
from pearl_cli.simulate.engine_rules import replay_engine
from pearl_cli.sizes import Size
from pearl_cli.trace import DECODE, PREFILL, TraceWriter, read_trace
from pearl_cli.trace_texts import read_texts
from tests.tiny_gguf import tiny_moe

LAYERS, EXPERTS, K = 3, 8, 2
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ '[a]' if add_generation_prompt }}"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_moe("qwen3moe", num_layers=LAYERS, num_experts=EXPERTS, num_experts_per_tok=K)
    model.metadata["tokenizer.chat_template"] = TEMPLATE
    return model.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


def trace(model_path: Path, text: Path, *more: str) -> Result:
    arguments = ["-m", str(model_path), "-f", str(text), "-t", "1", "-c", "64", "-o", str(text.with_suffix(".csv"))]
    return CliRunner().invoke(command, [*arguments, *more], catch_exceptions=False)


def test_a_text_is_recorded_as_decoded_tokens_with_what_the_routers_saw(model_path: Path, tmp_path: Path) -> None:
    text, inputs = tmp_path / "t.txt", tmp_path / "t.npz"
    text.write_text("abcdefghij" * 9)  # longer than the context: two pieces
    trace(model_path, text, "--hidden", str(inputs))
    recorded = load_recorded(text.with_suffix(".csv"), inputs)
    assert len(recorded.hidden) >= 90
    assert set(recorded.trace.rows[:, 1]) == {DECODE}
    assert recorded.layers == [0, 1, 2]
    assert np.unique(recorded.turn).tolist() == [0, 1]
    assert (np.diff(recorded.step[recorded.turn == 0]) == 1).all()
    assert recorded.topk_ids.shape[1:] == (LAYERS, K)
    assert np.isfinite(recorded.hidden).all()
    assert recorded.hidden.any()


def test_generation_marks_the_prompt_as_prefill(model_path: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("hello there")
    trace(model_path, text, "-n", "5")
    rows = read_trace(text.with_suffix(".csv")).rows
    prompt, decoded = (np.unique(rows[rows[:, 1] == phase, 2]) for phase in (PREFILL, DECODE))
    assert prompt.size >= 11
    assert decoded.tolist() == [prompt[-1] + i for i in range(1, decoded.size + 1)]
    assert decoded.size == 4  # the last token is never computed


def test_jsonl_lines_are_texts_and_conversations(model_path: Path, tmp_path: Path) -> None:
    texts = tmp_path / "t.jsonl"
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    texts.write_text("\n".join(json.dumps(entry) for entry in ["one", {"messages": chat}, chat]) + "\n\n")
    trace(model_path, texts, "--chat")
    rows = read_trace(texts.with_suffix(".csv")).rows
    lengths = [np.unique(rows[rows[:, 0] == turn, 2]).size for turn in range(3)]
    assert lengths[1] == lengths[2]  # the same conversation, rendered whole
    assert lengths[0] == len("[user]one[a]") + lengths[1] - len("[user]hi[assistant]ho")
    with pytest.raises(UsageError, match="line 2 holds chat messages; add --chat"):
        trace(model_path, texts)


@pytest.mark.parametrize("line", ["not json", "[" * 100_000, "[]", "7", '{"no": "text"}'])
def test_bad_lines_are_named(model_path: Path, tmp_path: Path, line: str) -> None:
    texts = tmp_path / "t.jsonl"
    texts.write_text('"fine"\n' + line + "\n")
    with pytest.raises(FileError, match="line 2"):
        trace(model_path, texts)


def test_a_limit_of_tokens(model_path: Path, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("abcdefghij" * 9)
    trace(model_path, text, "--max-tokens", "70")
    rows = read_trace(text.with_suffix(".csv")).rows
    assert np.unique(rows[:, (0, 2)], axis=0).shape[0] == 70


@pytest.mark.parametrize("evict", ["pearl", "lru"])
def test_engine_counters_equal_the_replay_of_their_own_trace(model_path: Path, tmp_path: Path, evict: str) -> None:
    options = RunOptions(threads=1, ctx_size=64, budget=Size(percent=50), evict=evict)
    path = tmp_path / "run.csv"
    with open_engine(model_path, options) as opened:
        engine, slots = opened.engine, list(opened.plan.slots.capacities)
        recorder = engine.provider = RecordingProvider(opened.controller, opened.backend, keep_hidden=False)
        engine.prefill([5])
        prompt = opened.controller.totals
        for token in np.random.default_rng(0).integers(0, 200, 50).tolist():
            engine.decode_step(token)
        done = opened.controller.totals - prompt
    with path.open("w") as out:
        writer = TraceWriter(out, "tiny", "qwen3moe", EXPERTS, K, [100] * LAYERS, [1] * LAYERS)
        for call in recorder.calls:
            for layer in call.layers:
                phase = PREFILL if call.phase == "prefill" else DECODE
                hit = layer.hit[0] if layer.hit is not None else None
                writer.write(0, phase, call.start, layer.layer, layer.topk_ids[0], layer.topk_weights[0], hit)
    recorded = read_trace(path)
    result = replay_engine(recorded, slots, make_policy(evict), EmaNextUse(LAYERS, EXPERTS, K))
    assert (result.hits_decode, result.lookups_decode) == (done.hits, done.hits + done.misses)
    assert 0 < done.misses < done.hits + done.misses
    in_file = [line.split(",") for line in path.read_text().splitlines() if line[0].isdigit()]
    assert sum(int(row[7]) for row in in_file if row[1] == "1") == done.hits


@pytest.mark.parametrize(
    ("name", "content", "flags", "words"),
    [
        ("t.jsonl", "\n\n", [], "-f: there is no text to record"),
        ("t.txt", "abc" * 40, ["-n", "2"], "t.txt: its 120 tokens do not fit the context of 64; shorten it"),
        ("t.jsonl", '"a"\n"' + "b" * 70 + '"\n', ["-n", "2"], "t.jsonl: line 2: its 70 tokens do not fit"),
    ],
)
def test_what_cannot_be_recorded_is_told_before_anything_is(
    name: str, content: str, flags: list[str], words: str, model_path: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=words):
        trace(model_path, tmp_path / name, "--hidden", str(tmp_path / "h.npz"), *flags)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_line_of_jsonl_ends_at_a_newline_alone(tmp_path: Path) -> None:
    """JSON strings may hold other characters at which Python cuts lines."""
    (tmp_path / "t.jsonl").write_text('"a\u2028b\x85c"\r\n"d"', encoding="utf-8")
    assert [entry for _, entry in read_texts([tmp_path / "t.jsonl"])] == ["a\u2028b\x85c", "d"]
