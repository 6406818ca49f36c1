"""Weights of a Hugging Face folder arrive in the GGUF with the right rows, scales and types."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from convert.pipeline import ConvertOptions, convert
from convert.rows import FileRows, Fp8Rows, OpenFile, RopePermuted
from kernels.quant_types import QuantType
from models.errors import CheckpointError, ConversionError
from models.gguf import GGUFModel
from tests.convert.checkpoints import EXPERTS, HIDDEN, LAYERS, VOCAB, WIDTH, config, weights, write_folder

NO_VOCAB = ConvertOptions(with_vocab=False)
F32 = ConvertOptions(quant="f32", with_vocab=False)


def converted(folder: Path, out: Path, options: ConvertOptions = F32) -> tuple[GGUFModel, list[str]]:
    notes: list[str] = []
    return GGUFModel.open(convert(folder, out, options, note=notes.append)), notes


def test_rope_permutation_of_one_head(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(np.arange(16, dtype="<f4").tobytes())
    rows = RopePermuted(FileRows(OpenFile(tmp_path / "rows"), 0, 16, 1, QuantType.F32), head_dim=8)
    expected = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert rows.floats(0, 16)[:, 0].tolist() == expected
    pieces = [rows.floats(first, n)[:, 0].tolist() for first, n in ((0, 3), (3, 7), (10, 6))]
    assert [value for piece in pieces for value in piece] == expected


@pytest.mark.parametrize(("architecture", "permuted"), [("llama", True), ("olmoe", False), ("qwen3moe", False)])
def test_only_llama_permutes_q_and_k(architecture: str, permuted: bool, tmp_path: Path) -> None:
    tensors = weights(architecture)
    model, _ = converted(write_folder(tmp_path / "hf", tensors, config(architecture)), tmp_path / "out")
    for name in ("q", "k"):
        source = tensors[f"model.layers.1.self_attn.{name}_proj.weight"]
        order = np.arange(len(source)).reshape(-1, 2, 4).transpose(0, 2, 1).reshape(-1) if permuted else slice(None)
        np.testing.assert_array_equal(model.array(f"blk.1.attn_{name}.weight"), source[order])
    np.testing.assert_array_equal(model.array("blk.1.attn_v.weight"), tensors["model.layers.1.self_attn.v_proj.weight"])


def test_fp8_block_scales_with_ragged_edges(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes([0x38]) * (130 * 200))  # 0x38 is 1.0
    scales = np.array([[0.5, 2], [4, 8]], np.float32)
    rows = Fp8Rows(OpenFile(tmp_path / "w"), 0, 130, 200, scales, (128, 128), 130)
    values = np.concatenate([rows.floats(0, 100), rows.floats(100, 30)])
    assert [values[0, 0], values[0, 199], values[129, 0], values[129, 199]] == [0.5, 2, 4, 8]
    assert values[127, 127] == 0.5
    assert values[128, 128] == 8


def test_fp8_stack_of_experts_is_scaled_matrix_by_matrix(tmp_path: Path) -> None:
    """Experts of 2 * 32 rows in blocks of 48: the blocks of an expert do not run on into the next."""
    tensors: dict[str, object] = {name: array for name, array in weights().items() if ".experts." not in name}
    rng, fused = np.random.default_rng(3), "model.layers.{}.mlp.experts.gate_up_proj"
    down = "model.layers.{}.mlp.experts.down_proj"
    scales = rng.uniform(0.5, 2, (EXPERTS, 2, 1)).astype(np.float32)
    for layer in range(LAYERS):
        tensors[fused.format(layer)] = ("F8_E4M3", np.full((EXPERTS, 2 * WIDTH, HIDDEN), 0x38, np.uint8))  # 1.0
        tensors[fused.format(layer) + "_scale_inv"] = ("F32", scales)
        tensors[down.format(layer)] = ("F32", rng.standard_normal((EXPERTS, HIDDEN, WIDTH)).astype(np.float32))
    values = config(quantization_config={"quant_method": "fp8", "weight_block_size": [48, 48]})
    model, _ = converted(write_folder(tmp_path / "hf", tensors, values), tmp_path / "out")  # type: ignore[arg-type]
    for expert in range(EXPERTS):
        rows = np.repeat(scales[expert, :, 0], (48, 16))
        np.testing.assert_array_equal(model.array(f"blk.1.ffn_gate.{expert}.weight")[:, 5], rows[:WIDTH])
        np.testing.assert_array_equal(model.array(f"blk.1.ffn_up.{expert}.weight")[:, 5], rows[WIDTH:])


def fp8_folder(path: Path, with_scale: bool = True) -> Path:
    tensors: dict[str, object] = dict(weights())
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name] = ("F8_E4M3", np.full((HIDDEN, HIDDEN), 0x38, np.uint8))
    if with_scale:
        tensors[name + "_scale_inv"] = ("F32", np.array([[3.0]], np.float32))
    return write_folder(
        path, tensors, config(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    )  # type: ignore[arg-type]


def test_fp8_tensor_is_scaled(tmp_path: Path) -> None:
    model, _ = converted(fp8_folder(tmp_path / "hf"), tmp_path / "out")
    assert (model.array("blk.0.attn_output.weight") == 3.0).all()


def test_fp8_without_scale_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"o_proj\.weight.*scale_inv"):
        converted(fp8_folder(tmp_path / "hf", with_scale=False), tmp_path / "out")


def test_no_lm_head_means_tied(tmp_path: Path) -> None:
    tensors = weights()
    del tensors["lm_head.weight"]
    model, notes = converted(write_folder(tmp_path / "hf", tensors), tmp_path / "out")
    assert "output.weight" not in model.tensors
    assert any("not tied" in note for note in notes)


def test_equal_lm_head_is_stored_once(tmp_path: Path) -> None:
    tensors = weights()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model, notes = converted(write_folder(tmp_path / "hf", tensors), tmp_path / "out")
    assert "output.weight" not in model.tensors
    assert any("stored once" in note for note in notes)


def test_differing_lm_head_wins_over_the_config(tmp_path: Path) -> None:
    tensors = weights()
    model, notes = converted(write_folder(tmp_path / "hf", tensors, config(tie_word_embeddings=True)), tmp_path / "out")
    np.testing.assert_array_equal(model.array("output.weight"), tensors["lm_head.weight"])
    assert any("lm_head is used" in note for note in notes)


def test_sharded_folder_equals_single(tmp_path: Path) -> None:
    single, _ = converted(write_folder(tmp_path / "a", weights()), tmp_path / "out-a")
    folder = write_folder(tmp_path / "b", weights(), shards=3)
    (folder / "consolidated.safetensors").write_bytes(b"other weights of the same model")
    several, _ = converted(folder, tmp_path / "out-b")
    assert list(single.tensors) == list(several.tensors)
    assert all(single.read(name).tobytes() == several.read(name).tobytes() for name in single.tensors)


def test_all_missing_shards_are_listed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights(), shards=4)
    for index in (2, 4):
        (folder / f"model-{index:05d}-of-00004.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00004.*00004-of-00004"):
        converted(folder, tmp_path / "out")


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="pickles"):
        converted(folder, tmp_path / "out")


def bf16_folder(path: Path, bits: int) -> Path:
    """A BF16 checkpoint with the given 16 bits as first weight of an attention matrix."""
    tensors = {name: ("BF16", array.astype(ml_dtypes.bfloat16).view(np.uint16)) for name, array in weights().items()}
    tensors["model.layers.0.self_attn.o_proj.weight"][1][0, 0] = bits
    return write_folder(path, tensors)


def test_bf16_is_kept_bit_for_bit_and_is_the_default(tmp_path: Path) -> None:
    model, _ = converted(bf16_folder(tmp_path / "hf", 0x0001), tmp_path / "out", NO_VOCAB)  # a subnormal
    assert model.tensors["blk.0.attn_output.weight"].quant_type == QuantType.BF16
    assert model.read("blk.0.attn_output.weight")[:2].tolist() == [1, 0]
    assert model.tensors["output_norm.weight"].quant_type == QuantType.F32


def test_f16_keeps_what_it_cannot_hold(tmp_path: Path) -> None:
    folder = bf16_folder(tmp_path / "hf", 0x4789)  # 70144
    model, notes = converted(folder, tmp_path / "out", ConvertOptions(quant="f16", with_vocab=False))
    assert model.tensors["blk.0.attn_output.weight"].quant_type == QuantType.BF16
    assert model.tensors["blk.1.attn_output.weight"].quant_type == QuantType.F16
    assert [note for note in notes if "65504" in note and "blk.0.attn_output.weight" in note]


def test_not_a_number_is_refused(tmp_path: Path) -> None:
    tensors = weights()
    tensors["model.layers.0.mlp.experts.1.up_proj.weight"][3, 3] = np.nan
    with pytest.raises(ConversionError, match=r"blk\.0\.ffn_up\.1\.weight.*NaN"):
        converted(
            write_folder(tmp_path / "hf", tensors), tmp_path / "out", ConvertOptions(quant="q8_0", with_vocab=False)
        )
    assert not list((tmp_path / "out").glob("*.gguf"))


def test_wrong_shape_is_refused(tmp_path: Path) -> None:
    tensors = weights()
    tensors["model.embed_tokens.weight"] = np.zeros((VOCAB + 1, HIDDEN), np.float32)
    with pytest.raises(CheckpointError, match=r"embed_tokens.*\[41, 32\].*\[40, 32\]"):
        converted(write_folder(tmp_path / "hf", tensors), tmp_path / "out")


def test_recipe_alone_keeps_f32(tmp_path: Path) -> None:
    options = ConvertOptions(recipe="attn=f16", with_vocab=False)
    model, _ = converted(write_folder(tmp_path / "hf", weights()), tmp_path / "out", options)
    assert model.tensors["blk.0.attn_q.weight"].quant_type == QuantType.F16
    assert model.tensors["token_embd.weight"].quant_type == QuantType.F32
