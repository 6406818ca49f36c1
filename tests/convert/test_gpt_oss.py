"""gpt-oss's checkpoints: MXFP4 blocks repacked (case MXFP4-PACK), gate and up that take turns, inputs before outputs,
and what stays quantised.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.quants import dequantize

from convert.expert_rows import EveryNth, Mxfp4Rows, Reshaped, TransposedRows
from convert.hf_config import HfConfig
from convert.pipeline import ConvertOptions, convert
from convert.rows import FileRows, OpenFile, Rows
from kernels.quant_types import QuantType
from models.errors import CheckpointError, UnsupportedError, UsageError
from models.gguf import GGUFModel
from tests.convert.checkpoints import Tensors, write_folder

HIDDEN, WIDTH, EXPERTS, HEADS, KV, HEAD_DIM, VOCAB, LAYERS = 64, 96, 3, 4, 2, 16, 50, 2
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
CONFIG = {
    "architectures": ["GptOssForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": WIDTH, "head_dim": HEAD_DIM,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV, "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2, "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 150000, "sliding_window": 16, "hidden_act": "silu", "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"], "swiglu_limit": 7.0, "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 16,
    },
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip


def packed(rng: np.random.Generator, n_rows: int, n_cols: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(blocks [E, rows, cols / 32, 16], scales [E, rows, cols / 32], the same weights as float32)."""
    codes = rng.integers(0, 16, (EXPERTS, n_rows, n_cols), dtype=np.uint8)
    scales = rng.integers(120, 130, (EXPERTS, n_rows, n_cols // 32), dtype=np.uint8)
    pairs = codes.reshape(EXPERTS, n_rows, n_cols // 32, 16, 2)
    values = FP4[codes] * np.repeat(np.exp2(scales.astype(np.float32) - 127), 32, axis=-1)
    return pairs[..., 0] | pairs[..., 1] << 4, scales, values.astype(np.float32)


def checkpoint(seed: int = 0) -> tuple[Tensors, dict[str, np.ndarray]]:
    """Stored tensors, and the dense [E, rows, cols] weights and [E, rows] biases by GGUF name."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    dense: dict[str, np.ndarray] = {}

    def plain(name: str, *shape: int) -> np.ndarray:
        array = rng.standard_normal(shape).astype(np.float32)
        tensors[name] = ("F32", array)
        return array

    for name, shape in {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }.items():
        plain(name, *shape)
    for layer in range(LAYERS):
        at, blk = f"model.layers.{layer}", f"blk.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            plain(f"{at}.{norm}.weight", HIDDEN)
        for which, rows in (("q", HEADS * HEAD_DIM), ("k", KV * HEAD_DIM), ("v", KV * HEAD_DIM)):
            plain(f"{at}.self_attn.{which}_proj.weight", rows, HIDDEN)
            plain(f"{at}.self_attn.{which}_proj.bias", rows)
        plain(f"{at}.self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
        plain(f"{at}.self_attn.o_proj.bias", HIDDEN)
        plain(f"{at}.self_attn.sinks", HEADS)
        plain(f"{at}.mlp.router.weight", EXPERTS, HIDDEN)
        plain(f"{at}.mlp.router.bias", EXPERTS)
        for stem, linears, rows, cols in (("gate_up", "gate up", 2 * WIDTH, HIDDEN), ("down", "down", HIDDEN, WIDTH)):
            blocks, scales, values = packed(rng, rows, cols)
            tensors[f"{at}.mlp.experts.{stem}_proj_blocks"] = ("U8", blocks)
            tensors[f"{at}.mlp.experts.{stem}_proj_scales"] = ("U8", scales)
            bias = plain(f"{at}.mlp.experts.{stem}_proj_bias", EXPERTS, rows)
            names = linears.split()
            for part, linear in enumerate(names):
                dense[f"{blk}.ffn_{linear}_exps.weight"] = values[:, part :: len(names)]
                dense[f"{blk}.ffn_{linear}_exps.bias"] = bias[:, part :: len(names)]
    return tensors, dense


def converted(tmp_path: Path, tensors: Tensors, options: ConvertOptions, config: dict[str, Any] = CONFIG) -> GGUFModel:
    folder = write_folder(tmp_path / "hf", tensors, config)
    return GGUFModel.open(convert(folder, tmp_path / "out", options))


def floats(model: GGUFModel, name: str) -> np.ndarray:
    """A tensor of any type in numpy order, by gguf-py's own dequantiser."""
    info = model.tensors[name]
    rows = np.array(model.read(info)).reshape(info.n_rows, -1)
    return np.asarray(dequantize(rows, info.quant_type)).reshape(tuple(reversed(info.shape)))


def test_one_byte_of_two_weights(tmp_path: Path) -> None:
    """HF byte 0x21 at index 0 is weights 0 and 1; in a GGUF block byte 0 holds weights 0 and 16."""
    (tmp_path / "b").write_bytes(bytes([0x21] + [0] * 7 + [0x43] + [0] * 7))
    (tmp_path / "s").write_bytes(bytes([127]))
    rows = Mxfp4Rows(OpenFile(tmp_path / "b"), 0, OpenFile(tmp_path / "s"), 0, 1, 32)
    expected = np.zeros(32, np.float32)
    expected[[0, 1, 16, 17]] = 0.5, 1.0, 1.5, 2.0
    np.testing.assert_array_equal(rows.floats(0, 1)[0], expected)
    block = rows.raw(0, 1)
    assert block[:3].tolist() == [127, 0x31, 0x42]
    assert not block[3:].any()


@pytest.mark.parametrize("merge", [False, True])
def test_packed_experts_keep_every_weight(merge: bool, tmp_path: Path) -> None:
    tensors, dense = checkpoint()
    with converted(tmp_path, tensors, ConvertOptions(with_vocab=False, merge=merge)) as model:
        for name, expected in dense.items():
            if name.endswith("bias") or merge:
                np.testing.assert_array_equal(floats(model, name), expected)
            else:
                stem = name.removesuffix("_exps.weight")
                for expert, matrix in enumerate(expected):
                    np.testing.assert_array_equal(floats(model, f"{stem}.{expert}.weight"), matrix)
        weights = [info for name, info in model.tensors.items() if ".ffn_" in name and name.endswith("weight")]
        stored = {info.quant_type for info in weights if "norm" not in info.name and "gate_inp" not in info.name}
        assert stored == {QuantType.MXFP4}
        assert model.tensors["blk.0.attn_q.weight"].quant_type is QuantType.F32
        assert model.metadata["general.file_type"] == 38
        assert ("MXFP4" in model.paths[0].name) or merge


def test_plain_checkpoints_are_transposed_and_parted(tmp_path: Path) -> None:
    tensors, dense = checkpoint()
    for name in [name for name in tensors if name.endswith(("_blocks", "_scales"))]:
        del tensors[name]
    for layer in range(LAYERS):
        at, blk = f"model.layers.{layer}.mlp.experts", f"blk.{layer}"
        gate, up = (dense[f"{blk}.ffn_{linear}_exps.weight"] for linear in ("gate", "up"))
        both = np.stack([gate, up], axis=2).reshape(EXPERTS, 2 * WIDTH, HIDDEN)
        tensors[f"{at}.gate_up_proj"] = ("F32", np.ascontiguousarray(both.swapaxes(1, 2)))
        down = dense[f"{blk}.ffn_down_exps.weight"]
        tensors[f"{at}.down_proj"] = ("F32", np.ascontiguousarray(down.swapaxes(1, 2)))
    config = {key: value for key, value in CONFIG.items() if key != "quantization_config"}
    with converted(tmp_path, tensors, ConvertOptions("f32", with_vocab=False, merge=True), config) as model:
        for name, expected in dense.items():
            np.testing.assert_array_equal(model.array(name), expected)


def test_packed_experts_stay_whatever_the_rest_becomes(tmp_path: Path) -> None:
    tensors, _ = checkpoint()
    notes: list[str] = []
    folder = write_folder(tmp_path / "hf", tensors, CONFIG)
    eight = convert(folder, tmp_path / "q8", ConvertOptions("q8_0", with_vocab=False), note=notes.append)
    with GGUFModel.open(eight) as model:
        assert model.tensors["blk.1.ffn_up.2.weight"].quant_type is QuantType.MXFP4
        assert model.tensors["blk.1.attn_k.weight"].quant_type is QuantType.Q8_0
    assert [note for note in notes if "MXFP4 in the checkpoint and stay so" in note and "exps.up" in note]
    recipe = ConvertOptions("q8_0", recipe="exps=q8_0", with_vocab=False)
    with pytest.raises(UsageError, match="--allow-requantize"):
        convert(folder, tmp_path / "again", recipe)
    forced = convert(folder, tmp_path / "f", ConvertOptions("q8_0", with_vocab=False, allow_requantize=True))
    with GGUFModel.open(forced) as model:
        assert model.tensors["blk.1.ffn_up.2.weight"].quant_type is QuantType.Q8_0


def lose(tensors: Tensors, _: dict[str, Any]) -> None:
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]


def misshape(tensors: Tensors, _: dict[str, Any]) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj_blocks"
    tensors[name] = ("U8", tensors[name][1][:, :-2])


def lose_bias(tensors: Tensors, _: dict[str, Any]) -> None:
    del tensors["model.layers.0.mlp.experts.gate_up_proj_bias"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(lose, "down_proj_blocks.*no '_scales'"), (misshape, "gate_up_proj_blocks.*shape"), (lose_bias, "gate_exps.bias")],
)
def test_what_is_missing_is_named(spoil: Any, says: str, tmp_path: Path) -> None:
    tensors, _ = checkpoint()
    spoil(tensors, CONFIG)
    with pytest.raises(CheckpointError, match=says):
        converted(tmp_path, tensors, ConvertOptions(with_vocab=False))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_scaling": {**CONFIG["rope_scaling"], "truncate": True}}, "truncate True"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha 1.0"),
        ({"attention_bias": False}, "attention_bias False"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"layer_types": ["chunked_attention", "full_attention"]}, "layer_types"),
        ({"layer_types": 5}, "layer_types"),
        ({"layer_types": [["full_attention"], "full_attention"]}, "layer_types"),
    ],
)  # type: ignore[misc]
def test_other_rules_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        HfConfig(Path("hf"), json.loads(json.dumps({**CONFIG, **changes}))).dims()


def test_yarn_of_other_architectures_must_be_rounded() -> None:
    changes = {"architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": 32}
    with pytest.raises(UnsupportedError, match="truncate False is not supported for qwen3moe"):
        HfConfig(Path("hf"), {**CONFIG, **changes}).dims()


@pytest.mark.parametrize("quant_type", [QuantType.F32, QuantType.F16])
def test_views_read_in_any_pieces(quant_type: QuantType, tmp_path: Path) -> None:
    stored = np.arange(3 * 4 * 10).reshape(12, 10).astype("<f4" if quant_type is QuantType.F32 else "<f2")
    (tmp_path / "rows").write_bytes(stored.tobytes())
    base = FileRows(OpenFile(tmp_path / "rows"), 0, 12, 10, quant_type)
    single = FileRows(OpenFile(tmp_path / "rows"), 0, 120, 1, quant_type)
    wholes: list[tuple[Rows, np.ndarray]] = [
        (TransposedRows(base, 4), stored.reshape(3, 4, 10).swapaxes(1, 2).reshape(30, 4)),
        (EveryNth(base, 1, 3, 4), stored[1::3]),
        (EveryNth(TransposedRows(base, 4), 11, 2, 7), stored.reshape(3, 4, 10).swapaxes(1, 2).reshape(30, 4)[11:24:2]),
        (Reshaped(EveryNth(single, 1, 2, 60), 5), stored.reshape(-1)[1::2].reshape(12, 5)),
    ]
    for made, whole in wholes:
        assert (made.n_rows, made.n_cols) == whole.shape
        for size in (1, 3, 7, made.n_rows):
            spans = [(at, min(size, made.n_rows - at)) for at in range(0, made.n_rows, size)]
            assert b"".join(made.raw(*span).tobytes() for span in spans) == whole.tobytes()
            np.testing.assert_array_equal(np.concatenate([made.floats(*s) for s in spans]), whole.astype(np.float32))


def test_rows_that_take_turns_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over transposed matrices each read takes in whole matrices, so one a row would read them again and again."""
    stored = np.arange(48, dtype="<f4")
    (tmp_path / "rows").write_bytes(stored.tobytes())
    reads: list[int] = []
    read = OpenFile.read

    def counted(file: OpenFile, offset: int, n_bytes: int) -> np.ndarray:
        reads.append(n_bytes)
        return read(file, offset, n_bytes)

    monkeypatch.setattr(OpenFile, "read", counted)
    base = FileRows(OpenFile(tmp_path / "rows"), 0, 4, 12, QuantType.F32)
    every_other = EveryNth(TransposedRows(base, 4), 1, 2, 6)
    np.testing.assert_array_equal(every_other.floats(0, 6), stored.reshape(4, 12).T[1::2])
    assert reads == [stored.nbytes]
