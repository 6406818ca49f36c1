"""Hugging Face folders with odd contents: one line that names the file and says what to do, before anything is
written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convert.pipeline import ConvertOptions, convert
from models.errors import PearlError
from tests.convert.checkpoints import contents, weights, write_folder
from tests.tiny_gguf import tiny_moe, write_gguf

OPTIONS = ConvertOptions(with_vocab=False)
SECOND = "model-00002-of-00003.safetensors"


def replaced_by(make: Callable[[Path], object], name: str = SECOND) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def copied_over(folder: Path) -> None:
    shutil.copy(folder / "model-00001-of-00003.safetensors", folder / SECOND)


def onto_itself(path: Path) -> None:
    path.symlink_to(path)


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (replaced_by(lambda path: None), f"1 of 3 shards are missing: {SECOND}; download them"),
    "twice": (copied_over, f"{SECOND}: tensor 'model.embed_tokens.weight' is also in model-00001-of-00003.safetensors"),
    "empty": (replaced_by(Path.touch), f"{SECOND}: the file is empty (0 bytes); download it again"),
    "link to itself": (replaced_by(onto_itself), f"1 of 3 shards are missing: {SECOND}; download them"),
    "folder": (replaced_by(Path.mkdir), f"{SECOND}: no regular file; weights are read from files only"),
    "pipe": (replaced_by(os.mkfifo), f"{SECOND}: no regular file; weights are read from files only"),
    "config that is a link to itself": (
        replaced_by(onto_itself, "config.json"),
        "config.json: cannot be read: Too many levels of symbolic links",
    ),
    "config that is a pipe": (replaced_by(os.mkfifo, "config.json"), "config.json: no regular file"),
    "index that is a folder": (
        replaced_by(Path.mkdir, "model.safetensors.index.json"),
        "model.safetensors.index.json: no regular file",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    change, message = CASES[case]
    folder = write_folder(tmp_path / "hf", weights(), shards=3)
    change(folder)
    with pytest.raises(PearlError) as error:
        convert(folder, tmp_path / "out", OPTIONS)
    assert str(error.value).endswith(message)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("stored", "dtype"), [("I8", np.int8), ("F64", np.float64)])
def test_types_that_are_not_read_are_named_with_those_that_are(stored: str, dtype: type, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    given = {key: ("F32", value) for key, value in weights().items()}
    folder = write_folder(tmp_path / "hf", {**given, name: (stored, given[name][1].astype(dtype))})
    with pytest.raises(PearlError, match=f"'{name}' is stored as {stored}; supported: F32, F16, BF16, F8_E4M3"):
        convert(folder, tmp_path / "out", OPTIONS)


def test_a_file_that_the_index_does_not_name_is_left_aside_and_told_of(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights(), shards=3)
    expected = contents(convert(folder, tmp_path / "without", OPTIONS).parent)
    shutil.copy(folder / SECOND, folder / "model-00009-of-00009.safetensors")
    shutil.copy(folder / SECOND, folder / "consolidated.safetensors")
    notes: list[str] = []
    found = contents(convert(folder, tmp_path / "with", OPTIONS, note=notes.append).parent)
    assert found == expected
    assert notes == ["left aside, the checkpoint's index does not name them: model-00009-of-00009.safetensors"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("file/model", "file/model: cannot be made a directory to write into: Not a directory; give another -o"),
        ("loop", "loop: cannot be made a directory to write into: File exists; give another -o"),
        ("x" * 300, "cannot be made a directory to write into: File name too long; give another -o"),
    ],
)
def test_an_output_that_cannot_be_a_directory_is_named(out: str, message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    (tmp_path / "file").touch()
    onto_itself(tmp_path / "loop")
    with pytest.raises(PearlError) as error:
        convert(folder, tmp_path / out, OPTIONS)
    assert str(error.value).endswith(message)


def test_a_merge_into_a_file_without_the_suffix_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    (tmp_path / "file").write_text("kept")
    with pytest.raises(PearlError, match=r"file: is a file; give a directory, or a name that ends in \.gguf"):
        convert(folder, tmp_path / "file", ConvertOptions(with_vocab=False, merge=True))
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("imatrix", "give it to pearl convert --imatrix"), ("adapter", "merge it into its model first")],
)
def test_a_gguf_that_is_no_model_is_no_source(kind: str, advice: str, tmp_path: Path) -> None:
    model = tiny_moe()
    path = write_gguf(tmp_path / "other.gguf", model.metadata | {"general.type": kind}, model.tensors)
    with pytest.raises(PearlError, match=advice):
        convert(path, tmp_path / "out", OPTIONS)
    assert not (tmp_path / "out").exists()
