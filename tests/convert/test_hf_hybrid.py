"""Hybrid checkpoints: norms stored without their 1, heads in another order, and the parts that text does not need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.delta_net_rows import delta_net_view, qkv_and_gate
from convert.ordered_rows import Computed, OrderedColumns, OrderedRows
from convert.pipeline import ConvertOptions, convert
from convert.rows import FileRows, OpenFile
from kernels.quant_types import QuantType
from kernels.reference.norm import norm_ref
from models.config_recurrent import DeltaNetConfig
from models.errors import CheckpointError, UnsupportedError
from models.gguf import GGUFModel
from tests.convert.checkpoints import write_safetensors
from tests.tolerances import PAPER_DECIMALS

F32 = ConvertOptions(quant="f32", with_vocab=False)
HIDDEN, WIDTH, VOCAB, LAYERS, EXPERTS = 32, 32, 40, 2, 2
NET = DeltaNetConfig((True, False), conv_kernel=3, num_key_heads=2, num_heads=4, key_dim=4, value_dim=6)
Tensors = dict[str, np.ndarray]


def config(**changes: Any) -> dict[str, Any]:
    values = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": {
            "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "max_position_embeddings": 64, "num_experts": EXPERTS, "num_experts_per_tok": 1,
            "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": WIDTH, "vocab_size": VOCAB,
            "hidden_act": "silu", "linear_conv_kernel_dim": NET.conv_kernel, "linear_key_head_dim": NET.key_dim,
            "linear_value_head_dim": NET.value_dim, "linear_num_key_heads": NET.num_key_heads,
            "linear_num_value_heads": NET.num_heads, "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                "mrope_section": [1, 0, 0],
            },
            "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **changes,
        },
        "vision_config": {"depth": 2},
    }  # fmt: skip
    return values


def tensors() -> Tensors:
    """As published: text under `language_model`, and beside it a part for pictures and one that looks ahead."""
    rng = np.random.default_rng(0)
    at, heads = "model.language_model.layers.0.linear_attn", NET.num_heads
    shapes: dict[str, tuple[int, ...]] = {
        "model.language_model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.language_model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
        "model.visual.blocks.0.attn.qkv.weight": (8, 8),
        "model.visual.merger.norm.weight": (8,),
        "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
        "mtp.layers.0.self_attn.q_proj.weight": (64, HIDDEN),
        "mtp.norm.weight": (HIDDEN,),
        f"{at}.in_proj_qkv.weight": (NET.conv_width, HIDDEN),
        f"{at}.in_proj_z.weight": (NET.value_width, HIDDEN),
        f"{at}.in_proj_b.weight": (heads, HIDDEN),
        f"{at}.in_proj_a.weight": (heads, HIDDEN),
        f"{at}.conv1d.weight": (NET.conv_width, 1, NET.conv_kernel),
        f"{at}.A_log": (heads,),
        f"{at}.dt_bias": (heads,),
        f"{at}.norm.weight": (NET.value_dim,),
        f"{at}.out_proj.weight": (HIDDEN, NET.value_width),
        "model.language_model.layers.1.self_attn.q_proj.weight": (64, HIDDEN),
        "model.language_model.layers.1.self_attn.k_proj.weight": (16, HIDDEN),
        "model.language_model.layers.1.self_attn.v_proj.weight": (16, HIDDEN),
        "model.language_model.layers.1.self_attn.o_proj.weight": (HIDDEN, 32),
        "model.language_model.layers.1.self_attn.q_norm.weight": (8,),
        "model.language_model.layers.1.self_attn.k_norm.weight": (8,),
    }
    for layer in range(LAYERS):
        at = f"model.language_model.layers.{layer}"
        shapes |= {f"{at}.{which}_layernorm.weight": (HIDDEN,) for which in ("input", "post_attention")}
        shapes |= {
            f"{at}.mlp.gate.weight": (EXPERTS, HIDDEN),
            f"{at}.mlp.experts.gate_up_proj": (EXPERTS, 2 * WIDTH, HIDDEN),
            f"{at}.mlp.experts.down_proj": (EXPERTS, HIDDEN, WIDTH),
            f"{at}.mlp.shared_expert_gate.weight": (1, HIDDEN),
            f"{at}.mlp.shared_expert.gate_proj.weight": (WIDTH, HIDDEN),
            f"{at}.mlp.shared_expert.up_proj.weight": (WIDTH, HIDDEN),
            f"{at}.mlp.shared_expert.down_proj.weight": (HIDDEN, WIDTH),
        }
    return {name: 0.1 * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def folder(path: Path, own: Tensors, configuration: dict[str, Any] | None = None) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(configuration or config()))
    write_safetensors(path / "model.safetensors", {name: ("F32", array) for name, array in own.items()})
    return path


def converted(path: Path, out: Path) -> tuple[GGUFModel, list[str]]:
    notes: list[str] = []
    return GGUFModel.open(convert(path, out, F32, note=notes.append)), notes


def contents(model: GGUFModel) -> dict[str, bytes]:
    return {name: model.read(name).tobytes() for name in model.tensors}


def test_norms_get_their_1_and_the_delta_nets_own_does_not(tmp_path: Path) -> None:
    own = tensors()
    model, notes = converted(folder(tmp_path / "hf", own), tmp_path / "out")
    text = "model.language_model"
    for name, source in {
        "output_norm.weight": f"{text}.norm.weight",
        "blk.0.attn_norm.weight": f"{text}.layers.0.input_layernorm.weight",
        "blk.1.post_attention_norm.weight": f"{text}.layers.1.post_attention_layernorm.weight",
        "blk.1.attn_q_norm.weight": f"{text}.layers.1.self_attn.q_norm.weight",
    }.items():
        np.testing.assert_array_equal(model.array(name), own[source] + np.float32(1.0))
    np.testing.assert_array_equal(model.array("blk.0.ssm_norm.weight"), own[f"{text}.layers.0.linear_attn.norm.weight"])
    assert not [note for note in notes if "norms have a mean" in note]
    assert model.metadata["qwen35moe.rope.dimension_sections"].tolist() == [1, 0, 0, 0]
    assert model.metadata["qwen35moe.attention.recurrent_layers"].tolist() == [True, False]
    assert "qwen35moe.feed_forward_length" not in model.metadata


def test_what_looks_ahead_or_at_pictures_is_left_behind_and_changes_nothing(tmp_path: Path) -> None:
    own = tensors()
    model, notes = converted(folder(tmp_path / "hf", own), tmp_path / "out")
    assert [note for note in notes if "3 tensors are left behind: they predict several tokens at once" in note]
    assert [note for note in notes if "2 tensors are left behind: they see pictures" in note]
    text_alone = {name: array for name, array in own.items() if not name.startswith(("mtp.", "model.visual."))}
    bare, notes = converted(folder(tmp_path / "bare", text_alone), tmp_path / "out-bare")
    assert contents(bare) == contents(model)
    assert not [note for note in notes if "left behind" in note]


def test_a_checkpoint_that_has_added_the_1_already_is_seen_by_its_convolution(tmp_path: Path) -> None:
    """MLX's way: the convolution turned, the 1 in the norms."""
    own = tensors()
    model, _ = converted(folder(tmp_path / "hf", own), tmp_path / "out")
    for name, array in own.items():
        if name.endswith("conv1d.weight"):
            own[name] = array.swapaxes(1, 2)
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            own[name] = array + np.float32(1.0)
    turned, _ = converted(folder(tmp_path / "mlx", own), tmp_path / "out-mlx")
    assert contents(turned) == contents(model)


def test_norms_whose_mean_is_unlikely_are_said(tmp_path: Path) -> None:
    own = tensors()
    own["model.language_model.layers.0.input_layernorm.weight"] += np.float32(1.0)  # the 1 is there already
    _, notes = converted(folder(tmp_path / "hf", own), tmp_path / "out")
    assert [note for note in notes if "1 of 7 norms have a mean outside 0.3 to 1.5, first blk.0.attn_norm" in note]


def test_heads_and_decay_are_as_a_gguf_keeps_them(tmp_path: Path) -> None:
    own = tensors()
    model, _ = converted(folder(tmp_path / "hf", own), tmp_path / "out")
    at = "model.language_model.layers.0.linear_attn"
    turned = [0, 2, 1, 3]  # key head a has value heads 0 and 1, b has 2 and 3
    np.testing.assert_array_equal(model.array("blk.0.ssm_a"), -np.exp(own[f"{at}.A_log"])[turned])
    np.testing.assert_array_equal(model.array("blk.0.ssm_dt.bias"), own[f"{at}.dt_bias"][turned])
    np.testing.assert_array_equal(model.array("blk.0.ssm_beta.weight"), own[f"{at}.in_proj_b.weight"][turned])
    gate = own[f"{at}.in_proj_z.weight"].reshape(4, NET.value_dim, HIDDEN)[turned]
    np.testing.assert_array_equal(model.array("blk.0.attn_gate.weight"), gate.reshape(-1, HIDDEN))
    out = own[f"{at}.out_proj.weight"].reshape(HIDDEN, 4, NET.value_dim)[:, turned]
    np.testing.assert_array_equal(model.array("blk.0.ssm_out.weight"), out.reshape(HIDDEN, -1))
    conv = own[f"{at}.conv1d.weight"][:, 0]
    np.testing.assert_array_equal(model.array("blk.0.ssm_conv1d.weight")[:16], conv[:16])
    np.testing.assert_array_equal(model.array("blk.0.ssm_conv1d.weight")[22:28], conv[28:34])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layer_types": ["linear_attention", "sliding_attention"]}, "layer type 'sliding_attention'"),
        ({"linear_num_key_heads": 3}, "4 value heads over 3 key heads"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"rope_parameters": {"mrope_interleaved": False, "partial_rotary_factor": 0.5}}, "mrope_interleaved False"),
        ({"rope_parameters": {"partial_rotary_factor": 0.4}}, "partial_rotary_factor 0.4 of 8"),
    ],
)
def test_rules_that_are_not_computed_are_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=says):
        converted(folder(tmp_path / "hf", tensors(), config(**changes)), tmp_path / "out")


def test_a_convolution_of_a_third_layout_is_refused(tmp_path: Path) -> None:
    own = tensors()
    name = "model.language_model.layers.0.linear_attn.conv1d.weight"
    own[name] = own[name].swapaxes(0, 1)
    with pytest.raises(CheckpointError, match=r"conv1d.weight' has shape \[1, 40, 3\]"):
        converted(folder(tmp_path / "hf", own), tmp_path / "out")


def stored_rows(path: Path, array: np.ndarray) -> FileRows:
    path.write_bytes(array.tobytes())
    kind = QuantType.F16 if array.dtype == np.float16 else QuantType.F32
    return FileRows(OpenFile(path), 0, *array.shape, kind)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_views_read_in_any_pieces(dtype: type[np.generic], tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((10, 6)).astype(dtype)
    base, order = stored_rows(tmp_path / "rows", rows), np.array([4, 5, 6, 0, 1, 9, 2])
    columns = np.array([3, 1, 0, 2, 5, 4])
    def twice(x: np.ndarray) -> np.ndarray:
        return x * 2

    for view, whole in (
        (OrderedRows(base, order), rows[order]),
        (OrderedColumns(base, columns), rows[:, columns]),
        (Computed(base, twice), rows.astype(np.float32) * 2),
    ):
        for size in (1, 3, view.n_rows):
            spans = [(at, min(size, view.n_rows - at)) for at in range(0, view.n_rows, size)]
            assert b"".join(view.raw(*span).tobytes() for span in spans) == whole.tobytes()
            np.testing.assert_array_equal(np.concatenate([view.floats(*s) for s in spans]), whole.astype(np.float32))


def test_rows_of_key_heads_are_parted(tmp_path: Path) -> None:
    """Two key heads: query 2, key 2, values 2 x 1, gates 2 x 1, in the file a head after a head."""
    net = DeltaNetConfig((True,), 2, num_key_heads=2, num_heads=4, key_dim=2, value_dim=1)
    rows = np.arange(16, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    qkv, gate = qkv_and_gate(stored_rows(tmp_path / "rows", rows), net)
    assert qkv.floats(0, qkv.n_rows)[:, 0].tolist() == [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13]
    assert gate.floats(0, gate.n_rows)[:, 0].tolist() == [6, 7, 14, 15]


def test_equal_heads_stay_in_their_order(tmp_path: Path) -> None:
    net = DeltaNetConfig((True,), 2, num_key_heads=4, num_heads=4, key_dim=2, value_dim=1)
    rows = stored_rows(tmp_path / "rows", np.arange(8, dtype=np.float32)[:, None])
    assert delta_net_view("blk.0.attn_gate.weight", rows, net, tiled=True, shifted=True) is rows


@pytest.mark.parametrize(("shifted", "expected"), [(True, [0.848528, 1.131371]), (False, [0.0, 0.0])])
def test_a_norm_of_zeros_is_the_plain_one_where_it_is_shifted(
    shifted: bool, expected: list[float], tmp_path: Path
) -> None:
    rows = stored_rows(tmp_path / "rows", np.zeros((1, 2), np.float32))
    weight = delta_net_view("output_norm.weight", rows, NET, tiled=True, shifted=shifted).floats(0, 1)[0]
    out = norm_ref(np.array([[3.0, 4.0]]), weight, 0.0)[0]
    assert out == pytest.approx(expected, abs=PAPER_DECIMALS)
