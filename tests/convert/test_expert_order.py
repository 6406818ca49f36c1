"""Experts in the order of a trace: what is chosen together lies together, and the model stays the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convert.expert_order import mean_stretches, order_by_coactivation
from convert.pipeline import ConvertOptions, convert
from models.config import ModelConfig
from models.errors import UsageError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from pearl_cli.main import run
from pearl_cli.trace import TraceWriter
from tests.convert.checkpoints import weights, write_folder

PLAIN = ConvertOptions(quant="f32", with_vocab=False)
ORDER = ((2, 0, 3, 1), (0, 1, 2, 3))


def choices(*ids: tuple[int, ...]) -> list[tuple[int, np.ndarray]]:
    return [(0, np.array(own, np.int64)) for own in ids]


def test_the_pair_chosen_most_often_is_the_core_of_the_row() -> None:
    seen = choices((1, 4), (1, 4), (1, 4), (4, 2), (4, 2), (1, 0), (5, 3))
    (order,) = order_by_coactivation(seen, 1, 6)
    assert sorted(order) == [0, 1, 2, 3, 4, 5]
    places = [order.index(e) for e in (0, 1, 4, 2)]
    assert abs(places[1] - places[2]) == abs(places[2] - places[3]) == abs(places[0] - places[1]) == 1


def test_stretches_are_counted() -> None:
    seen = choices((0, 1, 3), (5, 4), (2,))
    assert mean_stretches(seen, None) == (2 + 1 + 1) / 3
    assert mean_stretches(seen, [[0, 2, 1, 4, 3, 5]]) == (3 + 2 + 1) / 3


def test_clusters_hidden_in_a_trace_are_found() -> None:
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(32).reshape(8, 4)
    seen = [(0, shuffled[rng.integers(8)]) for _ in range(200)]
    order = order_by_coactivation(seen, 1, 32)
    assert mean_stretches(seen, order) == 1.0
    assert mean_stretches(seen, None) > 3


def test_a_layer_without_choices_stays_by_number() -> None:
    assert order_by_coactivation([], 2, 3) == ((0, 1, 2), (0, 1, 2))


def test_files_follow_the_order_and_hold_the_same_experts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    by_number = convert(folder, tmp_path / "a", PLAIN)
    ordered = convert(folder, tmp_path / "b", replace(PLAIN, expert_order=ORDER))
    with GGUFModel.open(by_number) as a, GGUFModel.open(ordered) as b:
        assert {n: a.read(n).tobytes() for n in a.tensors} == {n: b.read(n).tobytes() for n in b.tensors}
        assert a.metadata["pearl.set_id"] != b.metadata["pearl.set_id"]
        store = ExpertStore(b, ModelConfig.from_gguf(b))
        for layer, row in enumerate(ORDER):
            spans = [store.span(layer, expert) for expert in row]
            assert all(span is not None for span in spans)
            offsets = [span.offset for span in spans if span is not None]
            assert offsets == sorted(offsets)


@pytest.mark.parametrize("order", [ORDER[:1], ((0, 1, 2), (0, 1, 2)), ((0, 0, 1, 2), (0, 1, 2, 3))])
def test_a_trace_of_another_model_is_refused(order: tuple[tuple[int, ...], ...], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    with pytest.raises(UsageError, match="this model has 2 of 4"):
        convert(folder, tmp_path / "out", replace(PLAIN, expert_order=order))


def test_a_stack_has_no_order(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    with pytest.raises(UsageError, match="--merge"):
        convert(folder, tmp_path / "out", replace(PLAIN, expert_order=ORDER, merge=True))


def test_the_command_takes_a_recorded_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, trace = write_folder(tmp_path / "hf", weights()), tmp_path / "run.csv"
    with trace.open("w") as out:
        writer = TraceWriter(out, "m", "olmoe", 4, 2, [10, 10], [1, 1])
        for step in range(3):
            for layer in range(2):
                writer.write(0, 1, step, layer, np.array([0, 3]), np.ones(2, np.float32))
    args = ["convert", str(folder), "-o", str(tmp_path / "out"), "--no-vocab", "--order", str(trace)]
    assert run(args) == 0
    printed = capsys.readouterr()
    assert "lie in 1.00 stretches a layer, by number in 2.00" in printed.err
    with GGUFModel.open(Path(printed.out.splitlines()[-1])) as model:
        store = ExpertStore(model, ModelConfig.from_gguf(model))
        spans = [store.span(0, expert) for expert in (0, 3)]
    assert spans[0] is not None
    assert spans[1] is not None
    assert abs(spans[1].offset - spans[0].offset) == spans[0].n_bytes
