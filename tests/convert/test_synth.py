"""Synthetic models: the same weights in both layouts, sane numbers, a vocabulary that works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf.quants import dequantize

from convert.random_blocks import SUPPORTED, random_rows
from convert.synth import synthesize
from convert.synth_shapes import SHAPES, Shape
from kernels.quant_types import QuantType, row_bytes
from models.config import ModelConfig
from models.errors import UsageError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.tokenizer import Tokenizer

TINY = Shape("olmoe", 256, 2, 4, 4, 64, 256, 6, 2, 600, 128, 1e4, 1e-5, "full", "olmo")
TINY_LLAMA = Shape("llama", 256, 2, 4, 2, 64, 512, 4, 2, 700, 128, 1e6, 1e-5, "none", "spm")
TINY_QWEN = Shape("qwen3moe", 256, 2, 4, 2, 64, 256, 5, 2, 5000, 128, 1e6, 1e-6, "head", "qwen2")


@pytest.mark.parametrize("quant_type", SUPPORTED, ids=lambda t: t.name)
def test_random_blocks_have_the_spread_asked_for(quant_type: QuantType) -> None:
    raw = random_rows("w", 0, 200, 512, quant_type, 0.05, 7)
    values = dequantize(raw.reshape(200, row_bytes(quant_type, 512)), quant_type)
    assert values.shape == (200, 512)
    assert 0.035 < float(values.std()) < 0.065
    assert abs(float(values.mean())) < 0.006  # Q4_0's codes lie half a step off centre
    assert raw.tobytes() == random_rows("w", 0, 200, 512, quant_type, 0.05, 7).tobytes()
    assert raw.tobytes() != random_rows("v", 0, 200, 512, quant_type, 0.05, 7).tobytes()


@pytest.mark.parametrize("shape", [TINY, TINY_LLAMA, TINY_QWEN], ids=lambda s: s.architecture)
def test_both_layouts_hold_the_same_weights(shape: Shape, tmp_path: Path) -> None:
    pearl = synthesize(shape, tmp_path / "pearl", "q4_k")
    stock = synthesize(shape, tmp_path / "stock", "q4_k", layout="stacked")
    with GGUFModel.open(pearl) as a, GGUFModel.open(stock) as b:
        config = ModelConfig.from_gguf(a)
        one, other = ExpertStore(a, config), ExpertStore(b, config)
        for layer in range(shape.num_layers):
            for expert in range(shape.num_experts):
                for linear in range(3):
                    chunk = one.chunk(layer, expert, linear)
                    left, right = np.empty(chunk.n_bytes, np.uint8), np.empty(chunk.n_bytes, np.uint8)
                    one.read_into(layer, expert, linear, left)
                    other.read_into(layer, expert, linear, right)
                    assert left.tobytes() == right.tobytes()
        dense = [name for name in a.tensors if name in b.tensors]
        assert all(a.read(name).tobytes() == b.read(name).tobytes() for name in dense)
        assert a.tensors["output.weight"].quant_type == QuantType.Q6_K
        assert a.tensors["blk.0.ffn_gate_inp.weight"].quant_type == QuantType.F32


@pytest.mark.parametrize("shape", [TINY, TINY_LLAMA, TINY_QWEN], ids=lambda s: s.architecture)
def test_the_vocabulary_works(shape: Shape, tmp_path: Path) -> None:
    with GGUFModel.open(synthesize(shape, tmp_path, "q8_0")) as model:
        tokenizer = Tokenizer.from_metadata(model.metadata)
        assert tokenizer.vocab_size == shape.vocab_size
        text = "Hello w\u00f6rld 42!\n"
        assert tokenizer.decode(tokenizer.encode(text, add_bos=False)).lstrip(" ") == text
        assert len(set(model.metadata["tokenizer.ggml.tokens"])) == shape.vocab_size


def test_layers_and_shapes(tmp_path: Path) -> None:
    with GGUFModel.open(synthesize(TINY, tmp_path, "q8_0", num_layers=1)) as model:
        assert model.metadata["olmoe.block_count"] == 1
    with pytest.raises(UsageError, match="at least one layer"):
        synthesize(TINY, tmp_path, "q8_0", num_layers=0)
    assert {shape.architecture for shape in SHAPES.values()} == {"olmoe", "qwen3moe", "llama"}
