"""Training learns what the router inputs give away, holds whole texts out, and refuses files that do not match."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from models.errors import FileError, UsageError
from pearl_cli.commands.train import command, default_width
from pearl_cli.predict.predictor_file import load_predictor
from pearl_cli.predict.train_data import (
    RecordedTokens,
    history_features,
    horizon_labels,
    load_recorded,
    split_by_turn,
    stride_labels,
)
from pearl_cli.trace import TraceWriter

TURNS, TOKENS, LAYERS, HIDDEN, EXPERTS, K = 10, 30, 2, 12, 8, 2


def write_recorded(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """A trace whose router inputs announce the experts of the next event, and of the next layer."""
    rng = np.random.default_rng(seed)
    n = TURNS * TOKENS
    ids = np.stack([[rng.choice(EXPERTS, K, replace=False) for _ in range(LAYERS)] for _ in range(n)])
    hidden = np.zeros((n, LAYERS, HIDDEN), np.float16)
    for row in range(n):
        for layer in range(LAYERS):
            hidden[row, layer, ids[min(row + 1, n - 1), layer]] = 1.0
        hidden[row, 0, 8:] = rng.standard_normal(4)
    turn, step = np.repeat(np.arange(TURNS), TOKENS), np.tile(np.arange(TOKENS), TURNS)
    trace, inputs = folder / "t.csv", folder / "t.npz"
    with trace.open("w") as out:
        writer = TraceWriter(out, "toy", "olmoe", EXPERTS, K, [100] * LAYERS, [10] * LAYERS)
        for row in range(n):
            for layer in range(LAYERS):
                writer.write(int(turn[row]), 1, int(step[row]), layer, ids[row, layer], np.full(K, 0.5, np.float32))
    np.savez(inputs, hidden=hidden, turn=turn.astype(np.int32), step=step.astype(np.int32),
             token=np.zeros(n, np.int32), layers=np.arange(LAYERS), fingerprint=np.array("abc"))  # fmt: skip
    return trace, inputs


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_recorded(tmp_path)


@pytest.fixture
def recorded(files: tuple[Path, Path]) -> RecordedTokens:
    return load_recorded(*files)


def test_labels_stop_at_the_end_of_a_turn(recorded: RecordedTokens) -> None:
    labels = horizon_labels(recorded.topk_ids[:, 1], recorded.turn, EXPERTS, 3)
    assert labels.shape == (TURNS * TOKENS, 3, EXPERTS)
    for k in (1, 2, 3):
        unknown = np.isnan(labels[:, k - 1]).all(axis=1)
        assert np.flatnonzero(unknown[:TOKENS]).tolist() == list(range(TOKENS - k, TOKENS))
        assert sorted(np.flatnonzero(labels[0, k - 1]).tolist()) == sorted(recorded.topk_ids[k, 1].tolist())


def test_stride_labels_go_to_the_next_layer_or_the_next_token(recorded: RecordedTokens) -> None:
    ahead, around = stride_labels(recorded, 0, 1), stride_labels(recorded, 1, 1)
    assert sorted(np.flatnonzero(ahead[5, 0])) == sorted(recorded.topk_ids[5, 1])
    assert sorted(np.flatnonzero(around[5, 0])) == sorted(recorded.topk_ids[6, 0])
    assert np.isnan(around[TOKENS - 1]).all()


def test_no_text_is_on_both_sides(recorded: RecordedTokens) -> None:
    learned_from, held_out = split_by_turn(recorded)
    assert not set(learned_from.turn) & set(held_out.turn)
    assert len(learned_from.hidden) + len(held_out.hidden) == TURNS * TOKENS
    assert set(held_out.trace.rows[:, 0]) == set(held_out.turn)


def test_features_never_see_the_future(recorded: RecordedTokens) -> None:
    ids = recorded.topk_ids[:, 0].copy()
    before = history_features(ids, EXPERTS)
    ids[20:] = (ids[20:] + 1) % EXPERTS
    np.testing.assert_array_equal(history_features(ids, EXPERTS)[:20], before[:20])


@pytest.mark.parametrize("kind", ["horizon-mlp", "trajectory"])
def test_the_first_horizon_is_learned_and_the_second_cannot_be(files: tuple[Path, Path], kind: str) -> None:
    out = files[0].with_name("p.gguf")
    arguments = [str(files[0]), "--hidden", str(files[1]), "--predictor", kind, "-o", str(out), "--horizon", "2"]
    epochs = "60" if kind == "horizon-mlp" else "150"
    result = CliRunner().invoke(command, [*arguments, "--width", "16", "--epochs", epochs], catch_exceptions=False)
    assert "trained on 240 tokens, judged on 60" in result.output
    card, _ = load_predictor(out)
    assert (card.kind, card.fingerprint, card.layers, card.horizon) == (kind, "abc", (0, 1), 2)
    assert card.recall[0] > 0.8
    assert card.recall[1] < 0.5  # two of eight at random: a quarter
    assert card.ece < 0.15


def test_mlp_aims_at_the_layer_ahead(files: tuple[Path, Path]) -> None:
    out = files[0].with_name("p.gguf")
    arguments = [str(files[0]), "--hidden", str(files[1]), "--predictor", "mlp", "--stride", "2", "-o", str(out)]
    CliRunner().invoke(command, [*arguments, "--width", "16", "--epochs", "40"], catch_exceptions=False)
    card, _ = load_predictor(out)  # two layers ahead is the same layer of the next token: what the inputs announce
    assert card.stride == 2
    assert card.recall[0] > 0.8


def test_an_mlp_has_about_two_million_weights_on_the_shape_of_its_paper() -> None:
    hidden, experts = 2048, 64
    width = default_width("mlp", hidden)
    assert hidden * width + width + width * experts + experts == pytest.approx(2e6, rel=0.1)
    assert [default_width(kind, 256) for kind in ("mlp", "horizon-mlp", "trajectory")] == [128, 128, 64]


def test_files_that_do_not_belong_together(tmp_path: Path, files: tuple[Path, Path]) -> None:
    text = files[0].read_text().splitlines(keepends=True)
    files[0].write_text("".join(text[:-K]))
    with pytest.raises(FileError, match="does not belong to"):
        load_recorded(*files)
    (tmp_path / "bad.npz").write_bytes(b"hello")
    with pytest.raises(FileError, match="no router inputs"):
        load_recorded(files[0], tmp_path / "bad.npz")


def test_too_few_texts_to_hold_some_out(recorded: RecordedTokens) -> None:
    with pytest.raises(UsageError, match="3 texts"):
        split_by_turn(recorded.part(recorded.turn < 3))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--predictor", "mlp", "--horizon", "4"], "--horizon says nothing about --predictor mlp"),
        (["--stride", "2"], "--stride says nothing about --predictor horizon-mlp"),
    ],
)
def test_a_flag_of_another_predictor_is_refused(tmp_path: Path, flags: list[str], words: str) -> None:
    line = [str(tmp_path / "t.csv"), "--hidden", str(tmp_path / "h.npz"), "-o", str(tmp_path / "p.gguf"), *flags]
    done = CliRunner().invoke(command, line)
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)
