"""A tokenizer.json whose parts have another form than a tokenizer's is refused as a damaged file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from convert.open_source import open_source
from models.errors import CheckpointError, PearlError
from tests.convert.checkpoints import byte_level_tokenizer, weights, write_folder, write_tokenizer

WHOLE = byte_level_tokenizer()
WHOLE["post_processor"] = {
    "type": "Sequence",
    "processors": [{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}],
}


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    tokenizer = copy.deepcopy(WHOLE)
    part: Any = tokenizer
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return tokenizer


@pytest.mark.parametrize("value", ["x", -1, 1.5, True, [1], [None], [[]], {"a": 1}], ids=repr)
@pytest.mark.parametrize(
    "path",
    [
        ("added_tokens",), ("added_tokens", 0), ("model", "merges"), ("normalizer",), ("pre_tokenizer",),
        ("pre_tokenizer", "pretokenizers"), ("pre_tokenizer", "pretokenizers", 0),
        ("pre_tokenizer", "pretokenizers", 0, "pattern"), ("post_processor",), ("post_processor", "processors"),
        ("post_processor", "processors", 0, "single"), ("post_processor", "processors", 0, "single", 0, "SpecialToken"),
    ],
    ids=lambda path: path if isinstance(path, str) else ".".join(map(str, path)),
)  # fmt: skip
def test_no_form_is_a_traceback(path: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    write_tokenizer(folder, WHOLE)
    open_source(folder).close()
    write_tokenizer(folder, changed(path, value))
    told = "tokenizer.json" if isinstance(value, dict) else ""
    try:
        open_source(folder).close()
    except PearlError as error:  # any other error fails the test
        told = str(error)
    assert "tokenizer.json" in told


def test_the_part_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    for path, value, words in (
        (("added_tokens",), [1], "added_tokens is no list of JSON objects"),
        (("model", "merges"), 7, "model.merges is '7', not a list"),
        (("post_processor", "processors"), True, "post_processor.processors is 'True', not a list"),
        (("pre_tokenizer", "pretokenizers", 0), 1, "pre_tokenizer.pretokenizers is no list of JSON objects"),
    ):
        write_tokenizer(folder, changed(path, value))
        with pytest.raises(CheckpointError, match=f"tokenizer.json: {words}; download the file again"):
            open_source(folder)


def test_an_end_token_beyond_every_vocabulary(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    write_tokenizer(folder, WHOLE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 10**30]}))
    with pytest.raises(CheckpointError, match=r"eos_token_id 10{30} is not below vocab_size"):
        open_source(folder)


def test_more_layers_than_there_are_tensors(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    with pytest.raises(CheckpointError, match=r"config.json: num_hidden_layers is 10{9}, and the weight files hold"):
        open_source(folder)
