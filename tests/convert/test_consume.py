"""--consume deletes weight files only when what came from them is safe, and a stopped run goes on without them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convert import pipeline
from convert.pipeline import ConvertOptions, convert
from convert.shard_writer import write_files
from models.errors import UsageError
from tests.convert.checkpoints import (
    EXPERTS,
    Stopped,
    contents,
    stopping_at,
    weights,
    write_folder,
    write_safetensors,
)

SHARD_BYTES = EXPERTS * 3 * 4096  # one layer's experts
KEEP = ConvertOptions(quant="q8_0", with_vocab=False, threads=1, shard_bytes=SHARD_BYTES)
CONSUME = replace(KEEP, consume=True)


def layered(folder: Path) -> Path:
    """A folder of three shards: everything but experts, and one shard for the experts of each layer."""
    write_folder(folder, weights(), shards=3)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    tensors = weights()
    groups = [
        {n: a for n, a in tensors.items() if ".experts." not in n},
        {n: a for n, a in tensors.items() if ".0.mlp.experts." in n},
        {n: a for n, a in tensors.items() if ".1.mlp.experts." in n},
    ]
    weight_map = {}
    for index, group in enumerate(groups):
        name = f"model-{index + 1:05d}-of-00003.safetensors"
        write_safetensors(folder / name, {n: ("F32", a) for n, a in group.items()})
        weight_map |= dict.fromkeys(group, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_all_weight_files_are_gone_at_the_end_and_the_output_is_the_same(tmp_path: Path) -> None:
    folder = layered(tmp_path / "hf")
    whole = contents(convert(folder, tmp_path / "whole", KEEP).parent)
    convert(folder, tmp_path / "out", CONSUME)
    assert contents(tmp_path / "out") == whole
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors.index.json"]


def test_without_the_flag_nothing_is_deleted(tmp_path: Path) -> None:
    folder = layered(tmp_path / "hf")
    before = contents(folder)
    convert(folder, tmp_path / "out", KEEP)
    assert contents(folder) == before


def run(folder: Path, out: Path, before_step: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A consuming conversion that calls `before_step` before each step that changes the disk."""

    def hooked(*arguments: Any) -> Path:
        return write_files(*arguments[:5], before_step, *arguments[6:])

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "write_files", hooked)
        convert(folder, out, CONSUME)


def test_stopped_anywhere_it_goes_on_without_what_it_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    run(layered(tmp_path / "whole" / "hf"), tmp_path / "whole" / "out", steps.append, monkeypatch)
    whole = contents(tmp_path / "whole" / "out")
    left_behind = set()
    for stop_at in [i for i, name in enumerate(steps) if name not in ("tensor", "record") or i % 9 == 0]:
        folder, out = layered(tmp_path / str(stop_at) / "hf"), tmp_path / str(stop_at) / "out"
        with pytest.raises(Stopped):
            run(folder, out, stopping_at(stop_at), monkeypatch)
        left_behind.add(len(list(folder.glob("*.safetensors"))))
        convert(folder, out, CONSUME)
        assert contents(out) == whole, f"stopped before step {stop_at} ({steps[stop_at]})"
        assert not list(folder.glob("*.safetensors"))
    assert left_behind == {0, 1, 2, 3}


def test_other_options_do_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = layered(tmp_path / "hf")

    def fail(*_: object) -> Path:
        raise Stopped

    monkeypatch.setattr(pipeline, "write_files", fail)
    with pytest.raises(Stopped):
        convert(folder, tmp_path / "out", CONSUME)
    with pytest.raises(UsageError, match=r"begun with other options \(--quant q8_0"):
        convert(folder, tmp_path / "out", replace(CONSUME, quant="q4_0"))


def test_a_gguf_is_not_consumed(tmp_path: Path) -> None:
    pearl = convert(layered(tmp_path / "hf"), tmp_path / "pearl", KEEP)
    with pytest.raises(UsageError, match="--consume"):
        convert(pearl, tmp_path / "out", ConvertOptions(merge=True, consume=True))
    assert pearl.exists()
