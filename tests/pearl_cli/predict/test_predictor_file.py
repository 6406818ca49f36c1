"""A predictor comes back from its file as it was; what is no predictor, or a damaged one, is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest

from models.errors import FileError
from pearl_cli.predict.predictor_file import KINDS, load_predictor, save_predictor
from tests.pearl_cli.predict.forecast_files import random_predictor
from tests.tiny_gguf import tiny_moe


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(tmp_path: Path, kind: str) -> None:
    card, arrays = random_predictor(kind)
    save_predictor(tmp_path / "p.gguf", card, arrays)
    read_card, read_arrays = load_predictor(tmp_path / "p.gguf")
    assert dataclasses.replace(read_card, ece=0.0, recall=()) == dataclasses.replace(card, ece=0.0, recall=())
    assert (*read_card.recall, read_card.ece) == pytest.approx((*card.recall, card.ece))
    assert read_arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(read_arrays[name], array)
    assert list(tmp_path.iterdir()) == [tmp_path / "p.gguf"]


def test_ggufs_own_reader_sees_type_and_card(tmp_path: Path) -> None:
    save_predictor(tmp_path / "p.gguf", *random_predictor())
    fields = gguf.GGUFReader(tmp_path / "p.gguf").fields
    assert fields["general.type"].contents() == "pearl-predictor"
    assert fields["pearl.predictor.kind"].contents() == "horizon-mlp"


def test_a_model_is_no_predictor(tmp_path: Path) -> None:
    path = tiny_moe("olmoe").write(tmp_path / "model.gguf")
    with pytest.raises(FileError, match=r"a model \(olmoe\), not a predictor"):
        load_predictor(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"kind": "crystal-ball"}, "'crystal-ball' is unknown; supported: horizon-mlp"), ({"width": 9}, r"not \[10, 9\]")],
)
def test_cards_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    card, arrays = random_predictor()
    save_predictor(tmp_path / "p.gguf", dataclasses.replace(card, **changes), arrays)  # type: ignore[arg-type]
    with pytest.raises(FileError, match=message):
        load_predictor(tmp_path / "p.gguf")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    card, arrays = random_predictor()
    del arrays["blk.2.w1"]
    save_predictor(tmp_path / "p.gguf", card, arrays)
    with pytest.raises(FileError, match=r"'blk\.2\.w1' is missing"):
        load_predictor(tmp_path / "p.gguf")


def test_the_card_says_what_matters() -> None:
    text = "\n".join(random_predictor()[0].lines())
    for part in ("horizon-mlp", "100 tokens", "1: 0.500, 2: 0.400, 3: 0.300", "0.0100"):
        assert part in text
