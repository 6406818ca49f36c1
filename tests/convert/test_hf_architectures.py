"""What single architectures have beside the rest: latent attention's expansion, layers that are not computed, shared
experts, and what of their config.json is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from convert.gguf_metadata import Metadata
from convert.hf_config import HfConfig
from convert.latent_rows import KeyExpansion, ValueExpansion
from convert.pipeline import ConvertOptions, convert
from convert.rows import FileRows, OpenFile, Rows
from kernels.quant_types import QuantType
from models.errors import CheckpointError, UnsupportedError
from models.gguf import GGUFModel
from tests.convert.checkpoints import config, write_folder
from tests.tiny_models import save_hf, tiny_model
from tests.tiny_seeing import as_published

HEADS, NOPE, VALUE, RANK, ROPE, HIDDEN, WIDTH = 3, 4, 5, 8, 2, 32, 32
F32 = ConvertOptions(quant="f32", with_vocab=False)


def deepseek_config(**changes: Any) -> dict[str, Any]:
    return config(
        "olmoe",
        **{
            "architectures": ["DeepseekV3ForCausalLM"], "num_attention_heads": HEADS, "num_experts": None,
            "head_dim": None, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1,
            "moe_intermediate_size": WIDTH, "intermediate_size": 48, "first_k_dense_replace": 1, "q_lora_rank": None,
            "kv_lora_rank": RANK, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE,
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "vocab_size": 40,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 1, "topk_group": 1, **changes,
        },
    )  # fmt: skip


def deepseek_weights(num_layers: int = 3) -> dict[str, np.ndarray]:
    """Two layers as config.json says (one dense, one with experts), and what a layer behind the last one holds."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (40, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (40, HIDDEN),
    }  # fmt: skip
    for layer in range(num_layers):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (HEADS * (NOPE + ROPE), HIDDEN),
            f"{at}.self_attn.kv_a_proj_with_mqa.weight": (RANK + ROPE, HIDDEN),
            f"{at}.self_attn.kv_a_layernorm.weight": (RANK,),
            f"{at}.self_attn.kv_b_proj.weight": (HEADS * (NOPE + VALUE), RANK),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HEADS * VALUE),
        }
        parts = ["mlp"] if layer == 0 else ["mlp.experts.0", "mlp.experts.1", "mlp.shared_experts"]
        for part in parts:
            width = 48 if layer == 0 else WIDTH
            shapes |= {f"{at}.{part}.{which}_proj.weight": (width, HIDDEN) for which in ("gate", "up")}
            shapes[f"{at}.{part}.down_proj.weight"] = (HIDDEN, width)
        if layer > 0:
            shapes |= {f"{at}.mlp.gate.weight": (2, HIDDEN), f"{at}.mlp.gate.e_score_correction_bias": (2,)}
    shapes["model.layers.2.eh_proj.weight"] = (HIDDEN, 2 * HIDDEN)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def converted(folder: Path, out: Path) -> tuple[GGUFModel, list[str]]:
    notes: list[str] = []
    return GGUFModel.open(convert(folder, out, F32, note=notes.append)), notes


def test_expansion_is_split_and_its_keys_transposed(tmp_path: Path) -> None:
    tensors = deepseek_weights()
    model, _ = converted(write_folder(tmp_path / "hf", tensors, deepseek_config()), tmp_path / "out")
    heads = tensors["model.layers.1.self_attn.kv_b_proj.weight"].reshape(HEADS, NOPE + VALUE, RANK)
    assert model.tensors["blk.1.attn_k_b.weight"].shape == (NOPE, RANK, HEADS)
    np.testing.assert_array_equal(model.array("blk.1.attn_k_b.weight"), heads[:, :NOPE].swapaxes(1, 2))
    np.testing.assert_array_equal(model.array("blk.1.attn_v_b.weight"), heads[:, NOPE:])
    keys = {key.removeprefix("deepseek2."): value for key, value in model.metadata.items()}
    assert keys["attention.head_count_kv"] == 1
    assert (keys["attention.key_length"], keys["attention.key_length_mla"]) == (RANK + ROPE, NOPE + ROPE)
    assert (keys["attention.value_length"], keys["attention.value_length_mla"]) == (RANK, VALUE)


@pytest.mark.parametrize("dtype", ["<f4", "<f2", ml_dtypes.bfloat16])
def test_expansion_read_in_any_pieces(dtype: Any, tmp_path: Path) -> None:
    quant_type = {"<f4": QuantType.F32, "<f2": QuantType.F16}.get(dtype, QuantType.BF16)
    stored = np.random.default_rng(1).standard_normal((HEADS * (NOPE + VALUE), RANK)).astype(dtype)
    (tmp_path / "rows").write_bytes(stored.tobytes())
    rows = FileRows(OpenFile(tmp_path / "rows"), 0, *stored.shape, quant_type)
    heads = stored.reshape(HEADS, NOPE + VALUE, RANK)
    wholes: list[tuple[Rows, np.ndarray]] = [
        (KeyExpansion(rows, NOPE, VALUE), heads[:, :NOPE].swapaxes(1, 2).reshape(-1, NOPE)),
        (ValueExpansion(rows, NOPE, VALUE), heads[:, NOPE:].reshape(-1, RANK)),
    ]
    for made, whole in wholes:
        assert (made.n_rows, made.n_cols) == whole.shape
        for size in (1, 3, 7, made.n_rows):
            spans = [(at, min(size, made.n_rows - at)) for at in range(0, made.n_rows, size)]
            assert b"".join(made.raw(*span).tobytes() for span in spans) == whole.tobytes()
            np.testing.assert_array_equal(
                np.concatenate([made.floats(*span) for span in spans]), whole.astype(np.float32)
            )


def test_expansion_of_8_bit_floats_is_scaled(tmp_path: Path) -> None:
    tensors: dict[str, Any] = deepseek_weights()
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    tensors[name] = ("F8_E4M3", np.full((HEADS * (NOPE + VALUE), RANK), 0x38, np.uint8))  # 1.0 everywhere
    scales = np.arange(1, 8, dtype=np.float32)[:, None]
    tensors[name + "_scale_inv"] = ("F32", scales)
    quantization = {"quant_method": "fp8", "weight_block_size": [4, 8]}
    folder = write_folder(tmp_path / "hf", tensors, deepseek_config(quantization_config=quantization))
    model, _ = converted(folder, tmp_path / "out")
    rows = np.repeat(scales[:, 0], 4)[: HEADS * (NOPE + VALUE)].reshape(HEADS, NOPE + VALUE)
    np.testing.assert_array_equal(model.array("blk.1.attn_k_b.weight")[:, 5], rows[:, :NOPE])
    np.testing.assert_array_equal(model.array("blk.1.attn_v_b.weight")[..., 2], rows[:, NOPE:])


def test_layers_behind_the_last_are_left_behind_with_a_note(tmp_path: Path) -> None:
    model, notes = converted(write_folder(tmp_path / "hf", deepseek_weights(), deepseek_config()), tmp_path / "out")
    assert not [name for name in model.tensors if name.startswith("blk.2.")]
    assert model.metadata["deepseek2.block_count"] == 2
    assert [note for note in notes if "layers 2 and up are left behind" in note]
    folder = write_folder(tmp_path / "b", deepseek_weights(), deepseek_config(num_nextn_predict_layers=0))
    with pytest.raises(UnsupportedError, match=r"model\.layers\.2"):
        converted(folder, tmp_path / "out-b")


def test_selection_bias_stays_f32_under_its_name(tmp_path: Path) -> None:
    tensors = deepseek_weights()
    folder = write_folder(tmp_path / "hf", tensors, deepseek_config())
    path = convert(folder, tmp_path / "out", ConvertOptions(quant="q8_0", with_vocab=False))
    with GGUFModel.open(path) as model:
        assert model.tensors["blk.1.exp_probs_b.bias"].quant_type is QuantType.F32
        expected = tensors["model.layers.1.mlp.gate.e_score_correction_bias"]
        np.testing.assert_array_equal(model.array("blk.1.exp_probs_b.bias"), expected)
        assert model.metadata["deepseek2.expert_gating_func"] == 2
        assert model.metadata["deepseek2.expert_weights_scale"] == 2.5
        assert model.metadata["deepseek2.leading_dense_block_count"] == 1


@pytest.mark.parametrize("lost", ["self_attn.kv_a_layernorm.weight", "mlp.gate.e_score_correction_bias"])
def test_a_missing_tensor_is_named(lost: str, tmp_path: Path) -> None:
    tensors = deepseek_weights()
    del tensors[f"model.layers.1.{lost}"]
    own = {"self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight"}.get(lost, "exp_probs_b.bias")
    with pytest.raises(CheckpointError, match=rf"nothing for blk\.1\.{own}"):
        converted(write_folder(tmp_path / "hf", tensors, deepseek_config()), tmp_path / "out")


YARN = {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method 'greedy'"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"rope_scaling": YARN}, "mscale 0.707 and mscale_all_dim None"),
        ({"rope_scaling": {**YARN, "mscale_all_dim": 1.0}}, "mscale 0.707 and mscale_all_dim 1.0"),
    ],
)
def test_deepseek_rules_that_are_not_computed_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        HfConfig(Path("hf"), deepseek_config(**changes)).dims()


def test_yarn_multiplier_of_latent_attention() -> None:
    rope = {**YARN, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1}
    scaling = HfConfig(Path("hf"), deepseek_config(rope_scaling=rope)).dims().rope_scaling
    assert scaling is not None
    assert scaling.log_multiplier == pytest.approx(0.0707)
    assert (scaling.beta_fast, scaling.beta_slow, scaling.original_context) == (32, 1, 4096)


@pytest.mark.parametrize("changes", [{"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}, {"qkv_bias": False}])
def test_qwen2_with_layers_of_another_kind_is_refused(changes: dict[str, Any]) -> None:
    values = config("qwen3moe", architectures=["Qwen2MoeForCausalLM"], shared_expert_intermediate_size=32, **changes)
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        HfConfig(Path("hf"), values).add_metadata(Metadata())


def test_dense_layers_are_stated_by_number_or_by_kind() -> None:
    glm = {"architectures": ["Glm4MoeLiteForCausalLM"], "first_k_dense_replace": None}

    def dense(**changes: Any) -> int | None:
        return HfConfig(Path("hf"), deepseek_config(**changes)).dims().leading_dense

    assert dense(**glm, mlp_layer_types=["dense", "sparse"]) == dense() == 1
    assert dense(**glm, mlp_layer_types=["sparse", "sparse"]) == 0
    for kinds in (["sparse", "dense"], ["dense"], ["dense", "other"], "dense"):
        with pytest.raises(UnsupportedError, match="mlp_layer_types is not 2 layers, first dense and then sparse"):
            dense(**glm, mlp_layer_types=kinds)


def test_the_text_half_of_a_glm_that_sees(tmp_path: Path) -> None:
    model, options = tiny_model("glm4moe"), F32
    plain = convert(save_hf(model, tmp_path / "plain"), tmp_path / "a", options)
    seeing = as_published(save_hf(model, tmp_path / "hf"), "Glm4vMoeForConditionalGeneration", mrope_section=[2, 2, 2])
    with GGUFModel.open(plain) as a, GGUFModel.open(convert(seeing, tmp_path / "b", options)) as b:
        assert {n: a.read(n).tobytes() for n in a.tensors} == {n: b.read(n).tobytes() for n in b.tensors}
        assert b.metadata["glm4moe.rope.dimension_sections"].tolist() == [2, 2, 2, 0]
        assert "glm4moe.rope.dimension_sections" not in a.metadata
