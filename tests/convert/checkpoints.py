"""Test brick: small Hugging Face folders written with struct and json, never with the code under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, WIDTH, LAYERS, EXPERTS, VOCAB, HEADS, HEAD_DIM = 32, 32, 2, 4, 40, 4, 8
CLASSES = {"olmoe": "OlmoeForCausalLM", "qwen3moe": "Qwen3MoeForCausalLM", "llama": "MixtralForCausalLM"}
Tensors = dict[str, tuple[str, np.ndarray]]


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """`tensors`: name -> (dtype name, array holding the raw numbers)."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def config(architecture: str = "olmoe", **changes: Any) -> dict[str, Any]:
    values = {
        "architectures": [CLASSES[architecture]],
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 64,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **({"moe_intermediate_size": WIDTH} if architecture == "qwen3moe" else {}),
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def weights(architecture: str = "olmoe", seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of a tiny model in float32, experts one by one as `experts.{e}.gate_proj`."""
    rng = np.random.default_rng(seed)
    kv = 2 * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (kv, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (kv, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{at}.mlp.gate.weight": (EXPERTS, HIDDEN),
        }
        if architecture != "llama":
            norm = {"olmoe": (HEADS * HEAD_DIM, kv), "qwen3moe": (HEAD_DIM, HEAD_DIM)}[architecture]
            shapes |= {f"{at}.self_attn.{which}_norm.weight": (n,) for which, n in zip("qk", norm, strict=True)}
        for expert in range(EXPERTS):
            shapes |= {
                f"{at}.mlp.experts.{expert}.gate_proj.weight": (WIDTH, HIDDEN),
                f"{at}.mlp.experts.{expert}.up_proj.weight": (WIDTH, HIDDEN),
                f"{at}.mlp.experts.{expert}.down_proj.weight": (HIDDEN, WIDTH),
            }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_folder(
    folder: Path, tensors: dict[str, np.ndarray] | Tensors, configuration: dict[str, Any] | None = None, shards: int = 1
) -> Path:
    """A folder with config.json and weights (plain float32 arrays, or (dtype, array) pairs) in `shards` files; no
    tokenizer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration or config()))
    typed: Tensors = {name: value if isinstance(value, tuple) else ("F32", value) for name, value in tensors.items()}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", typed)
        return folder
    names = list(typed)
    weight_map = {}
    for index in range(shards):
        own = names[index::shards]
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(folder / file, {name: typed[name] for name in own})
        weight_map |= dict.fromkeys(own, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def sparse_folder(path: Path, n_experts: int, width: int, hidden: int) -> Path:
    """A one-layer checkpoint whose expert weights are holes in a sparse file: they cost no disk."""
    shapes = {
        "model.embed_tokens.weight": (40, hidden),
        "model.norm.weight": (hidden,),
        "model.layers.0.input_layernorm.weight": (hidden,),
        "model.layers.0.post_attention_layernorm.weight": (hidden,),
        "model.layers.0.self_attn.q_proj.weight": (32, hidden),
        "model.layers.0.self_attn.k_proj.weight": (16, hidden),
        "model.layers.0.self_attn.v_proj.weight": (16, hidden),
        "model.layers.0.self_attn.o_proj.weight": (hidden, 32),
        "model.layers.0.self_attn.q_norm.weight": (32,),
        "model.layers.0.self_attn.k_norm.weight": (16,),
        "model.layers.0.mlp.gate.weight": (n_experts, hidden),
        "model.layers.0.mlp.experts.gate_up_proj": (n_experts, 2 * width, hidden),
        "model.layers.0.mlp.experts.down_proj": (n_experts, hidden, width),
    }
    header, at = {}, 0
    for name, shape in shapes.items():
        n_bytes = int(np.prod(shape)) * 4
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    path.mkdir()
    text = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    changes = {"num_hidden_layers": 1, "num_experts": n_experts, "intermediate_size": width, "hidden_size": hidden}
    (path / "config.json").write_text(json.dumps(config(**changes)))
    return path


def byte_level_tokenizer(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json of 36 tokens: letters, two merges, a control token; cut like Qwen2."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123\u0120")
    tokens = [*letters, "ab", "abc"]
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    pattern = words + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "added_tokens": [
            {"id": 33, "content": "<|end|>", "special": True},
            {"id": 34, "content": "<think>", "special": False},
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": ["a b", ["ab", "c"]],
            "byte_fallback": False,
        },
        **changes,
    }


def write_tokenizer(folder: Path, tokenizer: dict[str, Any] | None = None, **settings: Any) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer or byte_level_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", **settings}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of `folder` by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Stopped(Exception):
    """Stands for a kill: nothing in the converter catches it."""


def stopping_at(step: int) -> Callable[[str], None]:
    """A `before_step` of the writer that raises Stopped before step `step`, counted from 0."""
    left = step

    def stop(_: str) -> None:
        nonlocal left
        if left == 0:
            raise Stopped
        left -= 1

    return stop
