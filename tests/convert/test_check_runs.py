"""What pearl does not run is found out before a weight is converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.open_in_ram import open_in_ram
from convert.pipeline import ConvertOptions, convert
from models.config import ModelConfig
from models.errors import PearlError
from tests.convert.checkpoints import config, weights, write_folder, write_tokenizer

F32 = ConvertOptions(quant="f32")
cases = pytest.mark.parametrize(
    ("changes", "fault"),
    [({"clip_qkv": 8.0}, "'olmoe.attention.clamp_kqv' = '8.0' is not implemented"),
     ({"num_experts_per_tok": 9}, "9 of 4 experts per token")],
    ids=["clip_qkv", "more experts than there are"],
)  # fmt: skip


def folder(path: Path, **changes: Any) -> Path:
    write_folder(path, weights(), config(**changes))
    write_tokenizer(path)
    return path


@cases
def test_a_model_that_would_not_run_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    source = folder(tmp_path / "hf", **changes)
    with pytest.raises(PearlError, match=fault) as caught:
        convert(source, tmp_path / "out", F32)
    assert str(caught.value).startswith(f"{source}: ")
    assert not (tmp_path / "out").exists()


@cases
def test_a_stock_file_of_it_may_be_for_others_and_is_written_with_a_word(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    notes: list[str] = []
    source = folder(tmp_path / "hf", **changes)
    out = convert(source, tmp_path / "o.gguf", ConvertOptions(merge=True), note=notes.append)
    assert out.exists()
    assert any(fault in note and note.startswith("pearl will not run the file") for note in notes)


@cases
def test_a_folder_run_from_memory_is_refused_before_a_weight_is_made(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    with open_in_ram(folder(tmp_path / "hf", **changes), F32, lambda n_bytes: np.zeros(n_bytes, np.uint8)) as model:
        with pytest.raises(PearlError, match=fault):
            ModelConfig.from_gguf(model)
        memory = model.memory
        assert memory is not None
        pages = sum(-(-info.n_bytes // 4096) for info in model.tensors.values())
        assert memory.missing_bytes(lambda name: True) == 4096 * pages
