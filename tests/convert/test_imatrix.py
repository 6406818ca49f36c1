"""Importance matrices: both file forms, and quantisers that spend their error where it counts least."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf.quants import dequantize

from convert.imatrix import read_imatrix
from convert.pipeline import ConvertOptions, convert
from kernels.cpu.quantize import WEIGHTED_TYPES, quantize_blocks
from kernels.quant_types import QuantType as Q
from models.errors import FileError, UsageError
from models.gguf import GGUFModel
from tests.convert.checkpoints import EXPERTS, HIDDEN, LAYERS, WIDTH, weights, write_folder
from tests.tiny_gguf import TinyTensor, f32, write_gguf

Values = dict[str, tuple[np.ndarray, np.ndarray]]


def values() -> Values:
    """By matrix: sums of squares [matrices, columns], and how many tokens each matrix saw."""
    rng = np.random.default_rng(2)
    found: Values = {"output.weight": (rng.uniform(1, 9, (1, HIDDEN)), np.array([4.0]))}
    for layer in range(LAYERS):
        for name, width in (("ffn_gate_exps", HIDDEN), ("ffn_up_exps", HIDDEN), ("ffn_down_exps", WIDTH)):
            found[f"blk.{layer}.{name}.weight"] = (rng.uniform(1, 9, (EXPERTS, width)), np.array([4.0, 2.0, 0.0, 8.0]))
        found[f"blk.{layer}.attn_q.weight"] = (rng.uniform(0, 9, (1, HIDDEN)), np.array([4.0]))
    return found


def write_gguf_form(path: Path, found: Values) -> Path:
    tensors: list[TinyTensor] = []
    for name, (sums, counts) in found.items():
        tensors += [f32(f"{name}.in_sum2", sums), f32(f"{name}.counts", counts[:, None])]
    keys = {"general.type": "imatrix", "imatrix.datasets": ("calibration.txt",), "imatrix.chunk_count": 3}
    return write_gguf(path, keys, tensors)


def write_dat_form(path: Path, found: Values, calls: int = 5) -> Path:
    raw = struct.pack("<i", len(found))
    for name, (sums, counts) in found.items():
        means = np.divide(sums, counts[:, None], where=counts[:, None] > 0, out=np.ones_like(sums))
        stored = (means * calls).astype("<f4")
        raw += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, stored.size) + stored.tobytes()
    path.write_bytes(raw + struct.pack("<ii", 3, 4) + b"text")
    return path


@pytest.mark.parametrize("form", [write_gguf_form, write_dat_form])
def test_both_forms_give_the_same_importances(form: object, tmp_path: Path) -> None:
    found = values()
    read = read_imatrix(form(tmp_path / "imatrix", found))  # type: ignore[operator]
    sums, counts = found["blk.1.ffn_up_exps.weight"]
    for name in ("blk.1.ffn_up.3.weight", "blk.1.ffn_up_exps.weight"):
        rows = read.rows_for(name, (HIDDEN, WIDTH, EXPERTS) if "exps" in name else (HIDDEN, WIDTH))
        assert rows is not None
        np.testing.assert_allclose(rows[-1], sums[3] / counts[3], rtol=1e-6)
    unseen = read.rows_for("blk.0.ffn_gate.2.weight", (HIDDEN, WIDTH))
    assert unseen is not None
    assert (unseen == 1).all()
    assert read.rows_for("blk.0.attn_k.weight", (HIDDEN, 8)) is None
    assert read.chunks == 3
    assert read.datasets[0] in ("calibration.txt", "text")


def test_a_column_without_input_still_counts_a_little(tmp_path: Path) -> None:
    read = read_imatrix(write_gguf_form(tmp_path / "i", {"output.weight": (np.array([[0.0, 4.0]]), np.array([1.0]))}))
    rows = read.rows_for("output.weight", (2, 3))
    assert rows is not None
    assert 0 < rows[0, 0] < 1e-4 * rows[0, 1]


@pytest.mark.parametrize("quant_type", WEIGHTED_TYPES, ids=lambda t: t.name)
def test_error_moves_to_where_it_counts_least(quant_type: Q) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((64, 512)).astype(np.float32)
    importance = (rng.uniform(0, 1, 512) ** 4 + 1e-3).astype(np.float32)

    def error(blocks: np.ndarray) -> float:
        return float((importance * (dequantize(blocks, quant_type) - x) ** 2).sum())

    plain, weighted = quantize_blocks(x, quant_type), quantize_blocks(x, quant_type, importance)
    assert error(weighted) < 0.97 * error(plain)
    halves = [quantize_blocks(part, quant_type, importance) for part in (x[:20], x[20:])]
    np.testing.assert_array_equal(weighted, np.concatenate(halves))


def test_q8_0_takes_no_notice() -> None:
    x = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)
    importance = np.arange(1, 65, dtype=np.float32)
    np.testing.assert_array_equal(quantize_blocks(x, Q.Q8_0, importance), quantize_blocks(x, Q.Q8_0))


def test_a_conversion_uses_the_experts_own_importances(tmp_path: Path) -> None:
    found, tensors = values(), weights()
    path, notes = write_gguf_form(tmp_path / "imatrix.gguf", found), []
    options = ConvertOptions(quant="q4_0", with_vocab=False, imatrix=path)
    out = convert(write_folder(tmp_path / "hf", tensors), tmp_path / "out", options, note=notes.append)
    read = read_imatrix(path)
    with GGUFModel.open(out) as model:
        for expert in range(EXPERTS):
            stored = tensors[f"model.layers.1.mlp.experts.{expert}.down_proj.weight"]
            rows = read.rows_for(f"blk.1.ffn_down.{expert}.weight", (WIDTH, HIDDEN))
            assert rows is not None
            expected = quantize_blocks(stored, Q.Q4_0, rows[0])
            assert model.read(f"blk.1.ffn_down.{expert}.weight").tobytes() == expected.tobytes()
        assert model.metadata["quantize.imatrix.file"] == "imatrix.gguf"
        assert model.metadata["quantize.imatrix.chunks_count"] == 3
    assert [note for note in notes if "--imatrix has nothing for 7 of" in note]


def test_another_matrix_is_another_job(tmp_path: Path) -> None:
    """A conversion with other importances may not go on from a half-finished one."""
    folder, names = write_folder(tmp_path / "hf", weights()), []
    for seed in (1, 2):
        found = {name: (sums * seed, counts) for name, (sums, counts) in values().items()}
        (tmp_path / f"{seed}").mkdir()
        path = write_gguf_form(tmp_path / f"{seed}" / "i.gguf", found)
        out = convert(folder, tmp_path / f"out{seed}", ConvertOptions(quant="q4_0", with_vocab=False, imatrix=path))
        with GGUFModel.open(out) as model:
            names.append(model.metadata["pearl.set_id"])
    assert names[0] != names[1]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    alien = write_gguf_form(tmp_path / "alien", {"blk.0.other.weight": (np.ones((1, 4)), np.ones(1))})
    with pytest.raises(UsageError, match=r"nothing for this model.*blk\.0\.other"):
        convert(folder, tmp_path / "a", ConvertOptions(quant="q4_0", with_vocab=False, imatrix=alien))
    narrow = write_gguf_form(tmp_path / "narrow", {"output.weight": (np.ones((1, 4)), np.ones(1))})
    with pytest.raises(FileError, match="4 importances for output"):
        convert(folder, tmp_path / "b", ConvertOptions(quant="q4_0", with_vocab=False, imatrix=narrow))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (0, "an empty file; pearl reads llama.cpp's importance matrices"),
        *((cut, "cut short within the first entry; copy it again") for cut in (3, 7, 9, 40)),
        (-40, r"cut short after \d+ entries"),
    ],
)
def test_a_cut_file_is_refused(cut: int, words: str, tmp_path: Path) -> None:
    whole = write_dat_form(tmp_path / "whole", values()).read_bytes()
    (tmp_path / "cut").write_bytes(whole[:cut])
    with pytest.raises(FileError, match=f"cut: {words}"):
        read_imatrix(tmp_path / "cut")


@pytest.mark.parametrize("raw", [b"just a text, and a longer one", b"\1\0\0\0\2\0\0\0\xff\xff" + bytes(8), bytes(64)])
def test_another_file_is_refused_in_the_users_words(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(raw)
    with pytest.raises(FileError, match=r"other: no importance matrix, or a damaged one; pearl reads llama.cpp's"):
        read_imatrix(tmp_path / "other")


def test_importances_for_types_that_do_not_weigh_are_told_of(tmp_path: Path) -> None:
    path, folder = write_gguf_form(tmp_path / "i.gguf", values()), write_folder(tmp_path / "hf", weights())
    for quant, told in (("q8_0", 1), ("q4_0", 0)):
        notes: list[str] = []
        options = ConvertOptions(quant=quant, with_vocab=False, imatrix=path)
        convert(folder, tmp_path / quant, options, note=notes.append)
        assert sum("--imatrix changes nothing" in note for note in notes) == told


def test_a_model_is_no_importance_matrix(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "olmoe"}, [f32("a", np.ones((1, 2)))])
    with pytest.raises(FileError, match="no importance matrix"):
        read_imatrix(path)
