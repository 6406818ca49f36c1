"""Synthetic models: the same weights in both layouts, sane numbers, a vocabulary that works."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf.quants import dequantize

from convert.mixes import MIXES
from convert.model_metadata import SIGMOID, ConstantFactors, LatentDims, ModelDims, RopeScaling, WindowHeads
from convert.random_blocks import SUPPORTED, random_rows
from convert.recipe import TARGETS
from convert.synth import _check_room, _with_layers, synthesize
from convert.synth_shapes import SHAPES, Shape
from kernels.quant_types import QuantType, row_bytes
from kernels.reference.backend import ReferenceBackend
from models.config import ModelConfig
from models.config_mamba import Mamba2Config
from models.config_recurrent import DeltaNetConfig
from models.errors import DiskFullError, UnsupportedQuantType, UsageError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.loader import load_model
from models.registry import ARCHITECTURES
from models.resident import ResidentExperts
from models.tokenizer import Tokenizer
from pearl_cli.commands.synth import command

SIZES: dict[str, Any] = {
    "hidden_size": 256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "intermediate_size": 256,
    "moe_intermediate_size": 256, "num_experts": 6, "num_experts_per_tok": 2, "vocab_size": 600,
    "context_length": 128, "rope_theta": 1e4, "rms_norm_eps": 1e-5,
}  # fmt: skip
LATENT = LatentDims(q_lora_rank=64, kv_lora_rank=64, nope_dim=32, rope_dim=32, value_dim=64)

DELTA_NET = DeltaNetConfig((True, False), conv_kernel=3, num_key_heads=2, num_heads=4, key_dim=64, value_dim=64)

MAMBA = Mamba2Config((True, False), conv_kernel=3, num_groups=2, num_heads=8, state_size=32, head_dim=64)


def tiny(architecture: str, pre_tokenizer: str = "qwen2", tied: bool = False, **changes: Any) -> Shape:
    return Shape(ModelDims(architecture=architecture, **{**SIZES, **changes}), pre_tokenizer, tied)


TINY = tiny("olmoe", "olmo", num_kv_heads=4, qk_norm="full")
TINY_SHAPES = [
    TINY,
    tiny("llama", "spm", moe_intermediate_size=512, num_experts=4, vocab_size=700, intermediate_size=512),
    tiny("qwen3moe", qk_norm="head", num_experts=5, vocab_size=5000),
    tiny("qwen2moe", attention_bias=True, shared_intermediate_size=512),
    tiny("deepseek2", latent=LATENT, shared_experts=1, leading_dense=1, gating=SIGMOID, num_kv_heads=1, head_dim=96),
    tiny("glm4moe", attention_bias=True, n_rot=32, shared_experts=1, leading_dense=1, gating=SIGMOID),
    tiny("minimax-m2", qk_norm="full", n_rot=32, gating=SIGMOID),
    tiny("ernie4_5-moe", "spm", vocab_size=700, tied=True, shared_experts=2, leading_dense=1),
    tiny("hunyuan-moe", "hunyuan", tied=True, qk_norm="head", shared_experts=1, shared_intermediate_size=256),
    tiny("qwen3vlmoe", qk_norm="head", rope_sections=(12, 10, 10, 0), deepstack_layers=1),
    tiny("mellum", "mellum2", qk_norm="head", sliding_window=16, window_theta=5e2, window_layers=(True, False)),
    tiny(
        "afmoe", "afmoe", qk_norm="head", sliding_window=16, shared_experts=2, leading_dense=1, gating=SIGMOID,
        output_gate=True,
    ),
    tiny(
        "exaone-moe", "exaone-moe", qk_norm="head", sliding_window=16, shared_experts=1, leading_dense=1,
        gating=SIGMOID, window_layers=(True, False),
    ),
    tiny("hy_v3", qk_norm="head", shared_experts=1, shared_intermediate_size=256, leading_dense=1, gating=SIGMOID),
    tiny("dots1", qk_norm="head", num_kv_heads=4, shared_experts=2, leading_dense=1, gating=SIGMOID),
    tiny(
        "gemma4", "spm", tied=True, vocab_size=700, qk_norm="head", shares_values=True, logit_softcap=30.0,
        rope_scaling=RopeScaling("proportional", 1.0, tensors={"rope_freqs.weight": (1.0,) * 8 + (1e30,) * 24}),
        sliding_window=16, window_layers=(True, False), window_heads=WindowHeads(1, 32, 1e4),
    ),
    tiny("phimoe", "spm", vocab_size=700, attention_bias=True, output_bias=True, norm_biases=True, logit_bias=True),
    tiny("gpt-oss", attention_bias=True, output_bias=True, sinks=True, expert_biases=True, sliding_window=16),
    tiny("lfm2moe", tied=True, qk_norm="head", leading_dense=1, gating=SIGMOID, conv_kernel=3, conv_layers=(True, 0)),
    tiny("qwen3next", qk_norm="head", n_rot=16, shared_intermediate_size=512, delta_net=DELTA_NET),
    tiny(
        "qwen35moe", "qwen35", qk_norm="head", n_rot=16, shared_intermediate_size=512, delta_net=DELTA_NET,
        intermediate_size=0, rope_sections=(3, 3, 2, 0),
    ),
    tiny(
        "granitehybrid", "dbrx", tied=True, factors=ConstantFactors(0.1, 6.0, 0.4, 3.0), rotates=False, conv_bias=True,
        mamba=MAMBA, shared_intermediate_size=256,
    ),
    tiny("granitemoe", "refact", tied=True, factors=ConstantFactors(0.1, 6.0, 0.4, 3.0)),
]  # fmt: skip
by_architecture = pytest.mark.parametrize("shape", TINY_SHAPES, ids=lambda s: s.dims.architecture)


@pytest.mark.parametrize("quant_type", SUPPORTED, ids=lambda t: t.name)
def test_random_blocks_have_the_spread_asked_for(quant_type: QuantType) -> None:
    raw = random_rows("w", 0, 200, 512, quant_type, 0.05, 7)
    values = dequantize(raw.reshape(200, row_bytes(quant_type, 512)), quant_type)
    assert values.shape == (200, 512)
    assert 0.035 < float(values.std()) < 0.065
    assert abs(float(values.mean())) < 0.006  # Q4_0's codes lie half a step off centre
    assert raw.tobytes() == random_rows("w", 0, 200, 512, quant_type, 0.05, 7).tobytes()
    assert raw.tobytes() != random_rows("v", 0, 200, 512, quant_type, 0.05, 7).tobytes()


@by_architecture
def test_both_layouts_hold_the_same_weights(shape: Shape, tmp_path: Path) -> None:
    pearl = synthesize(shape, tmp_path / "pearl", "q4_k")
    stock = synthesize(shape, tmp_path / "stock", "q4_k", layout="stacked")
    with GGUFModel.open(pearl) as a, GGUFModel.open(stock) as b:
        config = ModelConfig.from_gguf(a)
        one, other = ExpertStore(a, config), ExpertStore(b, config)
        for layer in config.moe_layers:
            for expert in range(config.router.num_experts):
                for linear in range(3):
                    chunk = one.chunk(layer, expert, linear)
                    left, right = np.empty(chunk.n_bytes, np.uint8), np.empty(chunk.n_bytes, np.uint8)
                    one.read_into(layer, expert, linear, left)
                    other.read_into(layer, expert, linear, right)
                    assert left.tobytes() == right.tobytes()
        dense = [name for name in a.tensors if name in b.tensors]
        assert all(a.read(name).tobytes() == b.read(name).tobytes() for name in dense)
        assert a.tensors["token_embd.weight" if shape.tied else "output.weight"].quant_type == QuantType.Q6_K
        assert a.tensors["blk.1.ffn_gate_inp.weight"].quant_type == QuantType.F32


@by_architecture
def test_the_architecture_loads_what_synth_makes(shape: Shape, tmp_path: Path) -> None:
    backend = ReferenceBackend()
    with GGUFModel.open(synthesize(shape, tmp_path, "q4_k")) as file:
        model = load_model(file, backend)
        experts = ResidentExperts(model, ExpertStore(file, model.config), backend)
        logits = model.forward(np.arange(3), model.new_cache(4, "f32", "f32"), experts, "prefill", "all")
    assert logits.shape == (3, shape.dims.vocab_size)
    assert np.isfinite(logits).all()
    assert float(logits.std()) > 0


@by_architecture
def test_the_vocabulary_works(shape: Shape, tmp_path: Path) -> None:
    with GGUFModel.open(synthesize(shape, tmp_path, "q8_0")) as model:
        tokenizer = Tokenizer.from_metadata(model.metadata)
        assert tokenizer.vocab_size == shape.dims.vocab_size
        text = "Hello w\u00f6rld 42!\n"
        assert tokenizer.decode(tokenizer.encode(text, add_bos=False)).lstrip(" ") == text
        assert len(set(model.metadata["tokenizer.ggml.tokens"])) == shape.dims.vocab_size


def test_layers_and_shapes(tmp_path: Path) -> None:
    with GGUFModel.open(synthesize(TINY, tmp_path, "q8_0", num_layers=1)) as model:
        assert model.metadata["olmoe.block_count"] == 1
    with pytest.raises(UsageError, match="at least 1"):
        synthesize(TINY, tmp_path, "q8_0", num_layers=0)
    with pytest.raises(UsageError, match="at least 2"):
        synthesize("deepseek-v2-lite", tmp_path, "q8_0", num_layers=1)


def test_kinds_of_layers_go_on_in_their_pattern() -> None:
    shape = _with_layers(SHAPES["qwen3.6-35b-a3b"], 6).dims
    assert (shape.num_layers, shape.delta_net.layers) == (6, (True, True, True, False, True, True))  # type: ignore[union-attr]
    assert _with_layers(SHAPES["lfm2-8b-a1b"], 4).dims.conv_layers == (True, True, False, True)
    assert _with_layers(SHAPES["gemma-4-26b-a4b"], 2).dims.window_layers == (True, True)


def test_every_architecture_has_a_shape_and_the_help_names_all() -> None:
    assert {shape.dims.architecture for shape in SHAPES.values()} == set(ARCHITECTURES)
    assert all(name in (command.help or "") for name in SHAPES)


@pytest.mark.parametrize("layers", [10**5, 10**12, 10**25])
def test_more_layers_than_the_disk_holds_are_refused_before_anything_is_written(layers: int, tmp_path: Path) -> None:
    out = tmp_path / "out" / "deeper"
    with pytest.raises(DiskFullError, match=rf"no space: --layers {layers} needs at least .*TiB, have .*nothing was"):
        synthesize("deepseek-v3", out, "q4_k_m", num_layers=layers)
    assert not out.parent.exists()


def test_room_is_what_is_free_and_what_an_earlier_run_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def room(n_bytes: int) -> None:
        monkeypatch.setattr("convert.synth.shutil.disk_usage", lambda _: SimpleNamespace(free=n_bytes))

    room(1 << 40)
    whole = synthesize(TINY, tmp_path / "a", "q8_0", num_layers=8, layout="stacked").stat().st_size
    (tmp_path / "b").mkdir()
    room(whole // 2)
    with pytest.raises(DiskFullError, match="--layers 8 needs at least"):
        synthesize(TINY, tmp_path / "b", "q8_0", num_layers=8, layout="stacked")
    (tmp_path / "b" / "x.partial").write_bytes(bytes(whole // 2))
    _check_room(TINY, 8, "q8_0", tmp_path / "b")


def test_the_help_names_all_types_that_can_be_made_and_no_other(tmp_path: Path) -> None:
    option = next(each for each in command.params if each.name == "quant")
    plain, mixed = re.split(r"llama.cpp's mixes:", option.help or "")  # type: ignore[attr-defined]
    told = [set(re.findall(r"\b(?:bf16|mxfp4_moe|mxfp4|f\d+|q\d\w+)\b", part)) for part in (plain, mixed)]
    made: tuple[set[str], set[str]] = (set(), set())
    for name in dict.fromkeys([*(target.name.lower() for target in TARGETS), *MIXES]):
        try:
            synthesize(TINY, tmp_path / name, name)
        except UnsupportedQuantType:
            continue
        made[name in MIXES].add(name)
    assert told == list(made)


def test_types_without_random_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedQuantType, match=r"'q3_k'.*Q4_K"):
        synthesize(TINY, tmp_path, "q3_k")
