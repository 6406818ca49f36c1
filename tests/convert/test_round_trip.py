"""transformers' own saved models through the converter and back: logits, and byte-identical chunks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from convert.open_in_ram import open_in_ram
from convert.pipeline import ConvertOptions, convert
from kernels.cpu.memory import allocate
from kernels.quant_types import QuantType, row_bytes
from kernels.reference.backend import ReferenceBackend
from models.config import ModelConfig
from models.errors import ConversionError, GGUFError, UsageError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.resident import ResidentExperts
from tests.convert.checkpoints import weights, write_folder
from tests.tiny_gguf import TinyTensor, f32, write_gguf
from tests.tolerances import LOGITS_RELATIVE

tiny_models = pytest.importorskip("tests.tiny_models", reason="transformers is needed as oracle")

NO_VOCAB = ConvertOptions(quant="f32", with_vocab=False)


def logits(path: Path | GGUFModel, ids: np.ndarray) -> np.ndarray:
    with GGUFModel.open(path) if isinstance(path, Path) else path as file:
        backend = ReferenceBackend()
        model = load_model(file, backend)
        store = ExpertStore(file, ModelConfig.from_gguf(file))
        cache = model.new_cache(len(ids), k_dtype="f32", v_dtype="f32")
        return model.forward(ids, cache, ResidentExperts(model, store, backend), "prefill", logits="all")


YARN = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_theta": 10000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmoe": ("olmoe", {}),
    "qwen3moe": ("qwen3moe", {}),
    "qwen3moe_yarn": ("qwen3moe", {"rope_parameters": YARN}),
    "llama": ("llama", {}),
    "qwen3moe_yarn_factor": ("qwen3moe", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
    "gemma4": ("gemma4", {}),
    "gemma4_own_values": ("gemma4", {"attention_k_eq_v": False, "final_logit_softcapping": None}),
    "phimoe": ("phimoe", {}),
    "phimoe_plain": (
        "phimoe",
        {
            "attention_bias": False, "lm_head_bias": False, "sliding_window": 6,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ),
    "lfm2moe": ("lfm2moe", {}),
    "lfm2moe_dense_first": (
        "lfm2moe",
        {"num_dense_layers": 2, "tie_word_embeddings": True, "norm_topk_prob": False, "conv_L_cache": 2},
    ),
    "llama_window": ("llama", {"sliding_window": 6}),
    "llama_llama3": ("llama", {"rope_parameters": LLAMA3}),
    "granitemoe_llama3": ("granitemoe", {"rope_parameters": LLAMA3}),
    "qwen2moe": ("qwen2moe", {}),
    "qwen2moe_normalised": ("qwen2moe", {"norm_topk_prob": True}),
    "deepseek2": ("deepseek2", {}),
    "deepseek2_no_groups": ("deepseek2", {"topk_method": "greedy", "n_group": 1, "topk_group": 1}),
    "deepseek2_yarn": ("deepseek2", {"rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "deepseek2_v3": ("deepseek2_v3", {}),
    "deepseek2_v3_direct_queries": ("deepseek2_v3", {"q_lora_rank": None, "first_k_dense_replace": 0}),
    "hunyuan_moe": ("hunyuan-moe", {"tie_word_embeddings": True}),
    "hunyuan_moe_layer_by_layer": (
        "hunyuan-moe",
        {"moe_topk": [3, 3], "moe_intermediate_size": [32, 32], "num_shared_expert": [1, 1], "use_cla": False},
    ),
    "deepseek2_lite": ("deepseek2_lite", {}),
    "mellum": ("mellum", {}),
    "afmoe": ("afmoe", {}),
    "exaone_moe": ("exaone-moe", {}),
    "hy_v3": ("hy_v3", {}),
    "minimax_m2": ("minimax-m2", {}),
    "minimax_m2_published_spelling": (
        "minimax-m2",
        {"rotary_dim": 12, "scoring_func": "sigmoid", "use_routing_bias": True, "qk_norm_type": "per_layer"},
    ),
    "dots1": ("dots1", {}),
    "dots1_no_groups": ("dots1", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "scoring_func": "sigmoid"}),
    "ernie4_5_moe": ("ernie4_5-moe", {"tie_word_embeddings": True}),
    "ernie4_5_moe_no_shared_expert": (
        "ernie4_5-moe",
        {"moe_num_shared_experts": 0, "moe_layer_start_index": 2, "intermediate_size": 80},
    ),
    "glm4moe": ("glm4moe", {}),
    "glm4moe_plain_attention": ("glm4moe", {"attention_bias": False, "use_qk_norm": False}),
    "gpt_oss": ("gpt-oss", {}),
    "gpt_oss_one_window": (
        "gpt-oss",
        {"layer_types": ["full_attention", "full_attention", "sliding_attention"], "swiglu_limit": 0.5},
    ),
    "qwen3vlmoe": ("qwen3vlmoe", {}),
    "qwen3next": ("qwen3next", {}),
    "qwen3next_one_key_head": ("qwen3next", {"linear_num_key_heads": 1, "linear_num_value_heads": 3}),
    "qwen35moe": ("qwen35moe", {"tie_word_embeddings": True}),
    "qwen35moe_yarn": (
        "qwen35moe",
        {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2]}},
    ),
    "qwen3next_yarn": ("qwen3next", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}),
    "qwen35moe_equal_heads": ("qwen35moe", {"linear_num_key_heads": 4, "linear_value_head_dim": 24}),
    "granitehybrid": ("granitehybrid", {}),
    "granitehybrid_rotating": (
        "granitehybrid", {"position_embedding_type": "rope", "mamba_n_groups": 1, "mamba_conv_bias": False}
    ),
    "granitemoe": ("granitemoe", {}),
    "granitemoe_shared": ("granitemoe_shared", {"tie_word_embeddings": True}),
}

DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "mlp_layer_types")


@pytest.mark.parametrize("name", MODELS)
def test_folder_to_pearl_to_stock_to_pearl_keeps_the_logits(name: str, tmp_path: Path) -> None:
    family, fields = MODELS[name]
    model = tiny_models.tiny_model(family, **fields)
    folder = tiny_models.save_hf(model, tmp_path / "hf")
    ids = tiny_models.prompt(25)
    expected = tiny_models.hf_logits(model, ids)
    pearl = convert(folder, tmp_path / "pearl", NO_VOCAB)
    stock = convert(pearl, tmp_path / "stock", ConvertOptions(merge=True))
    again = convert(stock, tmp_path / "again", ConvertOptions())
    first = logits(pearl, ids)
    assert np.abs(first - expected).max() <= LOGITS_RELATIVE * np.abs(expected).max()
    np.testing.assert_array_equal(first, logits(stock, ids))
    np.testing.assert_array_equal(first, logits(again, ids))
    np.testing.assert_array_equal(first, logits(open_in_ram(folder, NO_VOCAB, allocate), ids))
    with GGUFModel.open(pearl) as a, GGUFModel.open(again) as b:
        assert {n: a.read(n).tobytes() for n in a.tensors} == {n: b.read(n).tobytes() for n in b.tensors}
    dense = next((getattr(model.config, name) for name in DENSE_FIRST if hasattr(model.config, name)), 0)
    dense = dense if isinstance(dense, int) else dense.count("dense")
    stacks = [tensor.name for tensor in gguf.GGUFReader(stock).tensors if tensor.name.endswith("_exps.weight")]
    assert len(stacks) == 3 * (model.config.num_hidden_layers - dense)


def test_every_architecture_goes_there_and_back() -> None:
    assert {family for family, _ in MODELS.values()} == set(tiny_models.FAMILIES)


def test_a_merged_file_in_parts_is_the_whole_one(tmp_path: Path) -> None:
    pearl = convert(write_folder(tmp_path / "hf", weights()), tmp_path / "pearl", NO_VOCAB)
    whole = convert(pearl, tmp_path / "whole", ConvertOptions(merge=True))
    parts = convert(pearl, tmp_path / "parts", ConvertOptions(merge=True, shard_bytes=1 << 14))
    assert len(list(parts.parent.glob("*-of-*.gguf"))) > 2
    with GGUFModel.open(whole) as a, GGUFModel.open(parts) as b:
        assert {n: a.read(n).tobytes() for n in a.tensors} == {n: b.read(n).tobytes() for n in b.tensors}


def test_relayout_copies_metadata_with_its_types(tmp_path: Path) -> None:
    pearl = convert(write_folder(tmp_path / "hf", weights()), tmp_path / "pearl", NO_VOCAB)
    stock = convert(pearl, tmp_path / "merged.gguf", ConvertOptions(merge=True))
    assert stock == tmp_path / "merged.gguf"
    with GGUFModel.open(pearl) as a, GGUFModel.open(stock) as b:
        own = ("split.", "pearl.", "general.alignment")
        keep = [key for key in a.metadata if not key.startswith(own)]
        assert [key for key in b.metadata if not key.startswith(own)] == keep
        assert all(a.kinds[key] == b.kinds[key] and a.metadata[key] == b.metadata[key] for key in keep)


def test_requantising_needs_a_word(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    q8 = convert(folder, tmp_path / "q8", ConvertOptions(quant="q8_0", with_vocab=False))
    with pytest.raises(UsageError, match="--allow-requantize"):
        convert(q8, tmp_path / "q4", ConvertOptions(quant="q4_0"))
    q4 = convert(q8, tmp_path / "q4", ConvertOptions(quant="q4_0", allow_requantize=True))
    with GGUFModel.open(q4) as model:
        assert model.tensors["blk.0.ffn_up.0.weight"].quant_type.name == "Q4_0"


def test_merging_experts_of_different_types_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights())
    options = ConvertOptions(quant="f32", recipe="exps.up=q8_0", merge=True, with_vocab=False)
    with GGUFModel.open(convert(folder, tmp_path / "mixed", options)) as model:
        assert model.tensors["blk.0.ffn_up_exps.weight"].quant_type.name == "Q8_0"
        assert model.tensors["blk.0.ffn_gate_exps.weight"].quant_type.name == "F32"


def test_mixed_experts_are_reported_and_unified_on_request(tmp_path: Path) -> None:
    tensors = weights()
    expert = tensors["model.layers.1.mlp.experts.2.up_proj.weight"]
    source = convert(write_folder(tmp_path / "hf", tensors), tmp_path / "m.gguf", replace(NO_VOCAB, merge=True))
    with GGUFModel.open(source) as model:
        own = ("blk.0.", "blk.1.ffn_up_exps")
        made = [f32(name, np.array(model.array(name))) for name in model.tensors if not name.startswith(own)]
        made += [f32(name, np.array(model.array(name))) for name in model.tensors if name.startswith("blk.0.")]
        ups = np.array(model.array("blk.1.ffn_up_exps.weight"))
        keys = {key: model.metadata[key] for key in model.metadata if key.startswith("olmoe.")}
    for index, rows in enumerate(ups):
        kind = QuantType.Q8_0 if index == 2 else QuantType.Q4_0
        raw = gguf.quants.quantize(rows, kind).tobytes()
        made.append(TinyTensor(f"blk.1.ffn_up.{index}.weight", (rows.shape[1], rows.shape[0]), raw, int(kind)))
    mixed = write_gguf(tmp_path / "mixed.gguf", {"general.architecture": "olmoe", **keys}, made)
    with pytest.raises(ConversionError, match=r"blk\.1\.ffn_up_exps.*Q4_0, Q8_0.*--unify"):
        convert(mixed, tmp_path / "a.gguf", ConvertOptions(merge=True))
    notes: list[str] = []
    unified = convert(mixed, tmp_path / "b.gguf", ConvertOptions(merge=True, unify=True), note=notes.append)
    assert [note for note in notes if "1 stacks have experts of different types" in note]
    with GGUFModel.open(unified) as model:
        info = model.tensors["blk.1.ffn_up_exps.weight"]
        raw = np.array(model.read(info)).reshape(-1, row_bytes(info.quant_type, info.n_cols))
    assert info.quant_type is QuantType.Q8_0
    stored = gguf.quants.dequantize(raw, QuantType.Q8_0).reshape(ups.shape)
    np.testing.assert_array_equal(stored[2], requantized(expert, QuantType.Q8_0))
    np.testing.assert_array_equal(stored[1], requantized(requantized(ups[1], QuantType.Q4_0), QuantType.Q8_0))


def requantized(values: np.ndarray, kind: QuantType) -> np.ndarray:
    return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    pearl = convert(write_folder(tmp_path / "hf", weights()), tmp_path / "pearl", NO_VOCAB)
    before = pearl.read_bytes()
    with pytest.raises(UsageError, match="part of the input"):
        convert(pearl, tmp_path / "pearl", ConvertOptions())
    assert pearl.read_bytes() == before


def test_truncated_gguf_is_refused_before_writing(tmp_path: Path) -> None:
    stock = convert(
        write_folder(tmp_path / "hf", weights()),
        tmp_path / "s.gguf",
        ConvertOptions(quant="f32", with_vocab=False, merge=True),
    )
    stock.write_bytes(stock.read_bytes()[:-5000])
    with pytest.raises(GGUFError):
        convert(stock, tmp_path / "out", ConvertOptions())
    assert not (tmp_path / "out").exists()


def set_id(path: Path) -> object:
    with GGUFModel.open(path) as model:
        return model.metadata["pearl.set_id"]


def test_a_shard_of_another_conversion_is_refused(tmp_path: Path) -> None:
    """Same sizes, names and metadata; only the weights differ."""
    options = ConvertOptions(quant="f32", with_vocab=False)
    ours = convert(write_folder(tmp_path / "a" / "hf", weights()), tmp_path / "ours", options)
    theirs = convert(write_folder(tmp_path / "b" / "hf", weights(seed=1)), tmp_path / "theirs", options)
    second = ours.with_name(ours.name.replace("00001-of", "00002-of"))
    assert second.exists()
    (theirs.parent / second.name).replace(second)
    with pytest.raises(GGUFError, match=r"another model than .*pearl\.set_id differs"):
        GGUFModel.open(ours)


def test_the_set_id_depends_on_the_content_only(tmp_path: Path) -> None:
    first = convert(write_folder(tmp_path / "a" / "hf", weights()), tmp_path / "out-a", NO_VOCAB)
    again = convert(write_folder(tmp_path / "b" / "hf", weights()), tmp_path / "out-b", NO_VOCAB)
    assert first.read_bytes() == again.read_bytes()
    eight_bits = ConvertOptions("q8_0", with_vocab=False)
    other = convert(write_folder(tmp_path / "c" / "hf", weights()), tmp_path / "out-c", eight_bits)
    assert len({set_id(first), set_id(other), set_id(convert(first, tmp_path / "relaid", ConvertOptions()))}) == 3
    with GGUFModel.open(convert(first, tmp_path / "m.gguf", ConvertOptions(merge=True))) as stock:
        assert "pearl.set_id" not in stock.metadata
