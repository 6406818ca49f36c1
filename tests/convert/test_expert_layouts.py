"""Every way in which checkpoints spell experts gives the same chunks, and anything missing or left over is named."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from convert.pipeline import ConvertOptions, convert
from models.errors import CheckpointError, UnsupportedError
from models.gguf import GGUFModel
from tests.convert.checkpoints import EXPERTS, LAYERS, config, weights, write_folder
from tests.tiny_gguf import TinyTensor, f32, write_gguf

PLAIN = ConvertOptions(quant="f32", with_vocab=False)
_EXPERT = re.compile(r"(.*)\.mlp\.experts\.(\d+)\.(\w+)_proj\.weight$")


def chunks(path: Path) -> dict[str, bytes]:
    """Bytes of every expert tensor of a converted model."""
    with GGUFModel.open(path) as model:
        return {
            name: model.read(name).tobytes() for name in model.tensors if re.search(r"\.ffn_\w+\.\d+\.weight$", name)
        }


def stacked(tensors: dict[str, np.ndarray], layer: int, linear: str) -> np.ndarray:
    return np.stack([tensors[f"model.layers.{layer}.mlp.experts.{e}.{linear}_proj.weight"] for e in range(EXPERTS)])


def respelled(tensors: dict[str, np.ndarray], layout: str) -> dict[str, np.ndarray]:
    out = {name: array for name, array in tensors.items() if not _EXPERT.match(name)}
    if layout in ("mixtral", "per-expert"):
        names = {"gate": "w1", "down": "w2", "up": "w3"}
        for name, array in tensors.items():
            found = _EXPERT.match(name)
            if found and layout == "mixtral":
                out[f"{found[1]}.block_sparse_moe.experts.{found[2]}.{names[found[3]]}.weight"] = array
            elif found:
                out[name] = array
        return out
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        gate, up, down = (stacked(tensors, layer, linear) for linear in ("gate", "up", "down"))
        if layout == "fused":
            out |= {
                f"{at}.mlp.experts.gate_up_proj": np.concatenate([gate, up], axis=1),
                f"{at}.mlp.experts.down_proj": down,
            }
        elif layout == "granite":
            out[f"{at}.block_sparse_moe.input_linear.weight"] = np.concatenate([gate, up], axis=1)
            out[f"{at}.block_sparse_moe.output_linear.weight"] = down
        else:
            out |= {
                f"{at}.mlp.switch_mlp.{linear}_proj.weight": array
                for linear, array in (("gate", gate), ("up", up), ("down", down))
            }
    return {f"language_model.{name}": array for name, array in out.items()} if layout == "mlx" else out


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    tensors = weights()
    named = {}
    for name, array in tensors.items():
        found = _EXPERT.match(name)
        if found:
            layer = found[1].rsplit(".", 1)[1]
            named[f"blk.{layer}.ffn_{found[3]}.{found[2]}.weight"] = array.tobytes()
    return named


@pytest.mark.parametrize("layout", ["mixtral", "per-expert", "fused", "granite", "mlx"])
def test_hugging_face_layouts_agree(layout: str, expected: dict[str, bytes], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", respelled(weights(), layout))
    assert chunks(convert(folder, tmp_path / "out", PLAIN)) == expected


@pytest.mark.parametrize("layout", ["single", "stacked", "fused"])
def test_gguf_layouts_agree(layout: str, expected: dict[str, bytes], tmp_path: Path) -> None:
    tensors = weights()
    made: list[TinyTensor] = [f32("token_embd.weight", tensors["model.embed_tokens.weight"])]
    for layer in range(LAYERS):
        gate, up, down = (stacked(tensors, layer, linear) for linear in ("gate", "up", "down"))
        parts = {"gate": gate, "up": up, "down": down}
        if layout == "single":
            made += [f32(f"blk.{layer}.ffn_{k}.{e}.weight", v[e]) for k, v in parts.items() for e in range(EXPERTS)]
        elif layout == "stacked":
            made += [f32(f"blk.{layer}.ffn_{k}_exps.weight", v) for k, v in parts.items()]
        else:
            made.append(f32(f"blk.{layer}.ffn_gate_up_exps.weight", np.concatenate([gate, up], axis=1)))
            made.append(f32(f"blk.{layer}.ffn_down_exps.weight", down))
    keys = {"general.architecture": "olmoe", "olmoe.expert_count": EXPERTS, "olmoe.expert_used_count": 2}
    path = write_gguf(tmp_path / "stock.gguf", keys, made)
    assert chunks(convert(path, tmp_path / "out", ConvertOptions())) == expected


def test_missing_expert_is_named(tmp_path: Path) -> None:
    tensors = weights()
    del tensors["model.layers.1.mlp.experts.2.up_proj.weight"]
    folder = write_folder(tmp_path / "hf", tensors)
    with pytest.raises(CheckpointError, match="layer 1 has no up projection of expert 2"):
        convert(folder, tmp_path / "out", PLAIN)
    assert not (tmp_path / "out").exists()


def test_leftovers_are_listed_and_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", {**weights(), "model.layers.0.mlp.extra.weight": np.ones(3, np.float32)})
    with pytest.raises(UnsupportedError, match=r"model\.layers\.0\.mlp\.extra\.weight.*--allow-unmapped"):
        convert(folder, tmp_path / "out", PLAIN)
    notes: list[str] = []
    options = ConvertOptions(quant="f32", with_vocab=False, allow_unmapped=True)
    convert(folder, tmp_path / "out", options, note=notes.append)
    assert any("extra.weight" in note for note in notes)


def test_stack_of_the_wrong_orientation_is_refused(tmp_path: Path) -> None:
    tensors = respelled(weights(), "fused")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors[name] = tensors[name].transpose(0, 2, 1)
    with pytest.raises(CheckpointError, match=r"gate_up_proj.*shape"):
        convert(write_folder(tmp_path / "hf", tensors, config()), tmp_path / "out", PLAIN)
