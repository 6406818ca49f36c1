"""Seeded mutations of sound files: whatever comes of them, it is a model, or a one-line error of the user's kind."""

import random
import struct
from collections import Counter
from pathlib import Path

import pytest

from models.config import ModelConfig
from models.errors import PearlError
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from tests.tiny_gguf import TinyMoE, Typed, gguf_bytes, tiny_moe

NUMBERS = [0, 1, 3, -1, 2**31, 2**63 - 1, Typed("u64", 2**64 - 1), Typed("u16", 3), 0.0, -1.0, 1e38, Typed("f64", 0.1)]
ODD = [float("inf"), float("nan"), True, False, "", "x", [1, 2], [1.0], ["a"], Typed("u8", []), Typed("str", [])]
OPTIONAL = [
    "attention.clamp_kqv",
    "attention.sliding_window",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_weights_scale",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "swiglu_clamp_exp",
    "vocab_size",
]


def small_model(rng: random.Random) -> TinyMoE:
    layout = rng.choice(["stacked", "per-expert", "fused"])
    architecture = rng.choice(["olmoe", "qwen3moe", "llama"])
    return tiny_moe(architecture, layout=layout, hidden=32, expert_width=8, num_experts=3, num_layers=1)


def outcome(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    try:
        with GGUFModel.open(path) as gguf:
            ExpertStore(gguf, ModelConfig.from_gguf(gguf))
    except PearlError as error:
        caught = error
    else:
        return "sound"
    assert str(caught).isprintable()
    assert caught.exit_code == 2
    return "refused"


@pytest.mark.parametrize("seed", range(4))
def test_bytes_of_the_header_changed_at_random(tmp_path, seed):
    rng = random.Random(seed)
    outcomes = Counter()
    for _ in range(150):
        model = small_model(rng)
        header_bytes = len(gguf_bytes(model.metadata)) + 64 * len(model.tensors)
        content = bytearray(gguf_bytes(model.metadata, model.tensors))
        # Mostly outside the vocabulary, which is most of the header and may hold anything.
        at = rng.choice([rng.randrange(1000), rng.randrange(header_bytes - 64 * len(model.tensors), header_bytes)])
        kind = rng.randrange(5)
        if kind == 0:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            content[at : at + 8] = struct.pack("<Q", rng.choice([0, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]))
        elif kind == 2:
            del content[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            content[at:at] = bytes(rng.randrange(1, 9))
        else:
            content[at] = rng.choice([0, 1, 7, 8, 9, 12, 127, 128, 255])
        outcomes[outcome(tmp_path / "m.gguf", bytes(content))] += 1
    assert outcomes["refused"] > 50


@pytest.mark.parametrize("seed", range(4))
def test_metadata_replaced_at_random(tmp_path, seed):
    rng = random.Random(seed)
    outcomes = Counter()
    for _ in range(150):
        model = small_model(rng)
        architecture = model.metadata["general.architecture"]
        keys = [*model.metadata, *(f"{architecture}.{name}" for name in OPTIONAL), "general.type", "split.count"]
        for key in rng.sample(keys, rng.choice([1, 1, 2])):
            model.metadata[key] = rng.choice(NUMBERS + ODD)
        outcomes[outcome(tmp_path / "m.gguf", gguf_bytes(model.metadata, model.tensors))] += 1
    assert outcomes["refused"] > 50
    assert outcomes["sound"] > 10
