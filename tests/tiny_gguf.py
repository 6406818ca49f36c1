"""Small GGUF files made with `struct.pack`, for tests: never with the reader or the writer under test.

`gguf_bytes` packs any metadata and tensors, `write_gguf` and `write_split` put them on disk, `tiny_moe` makes a whole
random model (metadata, byte vocabulary, weights) of one of the supported architectures. Files made here may also be
wrong on purpose: every field can be overridden, nothing is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TYPES = ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64"]
TYPE_IDS = {name: number for number, name in enumerate(TYPES)}
FORMATS = dict(zip(TYPES, "BbHhIifB  Qqd", strict=True))
GGML_F32, GGML_F16, GGML_Q4_0, GGML_Q8_0 = 0, 1, 2, 8


@dataclass(frozen=True)
class Typed:
    """A metadata value with its GGUF type spelled out, e.g. Typed("u16", 3) or Typed("i64", [1, 2])."""

    kind: str
    value: Any


@dataclass(frozen=True)
class TinyTensor:
    """`shape` in ggml order (row length first), `data` its bytes; `offset` overrides where the header says they lie."""

    name: str
    shape: tuple[int, ...]
    data: bytes
    ggml_type: int = GGML_F32
    offset: int | None = None


def f32(name: str, array: np.ndarray) -> TinyTensor:
    """`array` in numpy order (rows first)."""
    return TinyTensor(name, tuple(reversed(array.shape)), np.ascontiguousarray(array, dtype="<f4").tobytes())


def pack_str(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def pack_value(value: Any) -> bytes:
    """Type id and value. Plain values: bool, int (u32, or a wider type), float (f32), str, bytes, lists."""
    if isinstance(value, Typed):
        kind, value = value.kind, value.value
    else:
        kind = _kind_of(value[0] if isinstance(value, (list, tuple)) and value else value)
    if isinstance(value, (list, tuple, np.ndarray)):
        body = b"".join(_pack_plain(kind, v) for v in value)
        return struct.pack("<IIQ", TYPE_IDS["array"], TYPE_IDS[kind], len(value)) + body
    return struct.pack("<I", TYPE_IDS[kind]) + _pack_plain(kind, value)


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "u32" if 0 <= value < 2**32 else "u64" if value >= 0 else "i32" if value >= -(2**31) else "i64"
    if isinstance(value, float):
        return "f32"
    return "i32" if isinstance(value, list) else "str"


def _pack_plain(kind: str, value: Any) -> bytes:
    return pack_str(value) if kind == "str" else struct.pack("<" + FORMATS[kind], value)


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Sequence[TinyTensor] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    n_kv: int | None = None,
    n_tensors: int | None = None,
) -> bytes:
    """A whole file. `alignment` other than 32 must also be in `metadata` by the caller; n_kv and n_tensors can lie."""
    counts = len(tensors) if n_tensors is None else n_tensors, len(metadata) if n_kv is None else n_kv
    head = bytearray(b"GGUF" + struct.pack("<IQQ", version, *counts))
    head += b"".join(pack_str(key) + pack_value(value) for key, value in metadata.items())
    body = bytearray()
    for tensor in tensors:
        body += b"\0" * (-len(body) % alignment)
        offset = len(body) if tensor.offset is None else tensor.offset
        head += pack_str(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += struct.pack("<IQ", tensor.ggml_type, offset)
        body += tensor.data
    return bytes(head) + b"\0" * (-len(head) % alignment) + bytes(body)


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[TinyTensor] = (), **options: Any) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors, **options))
    return path


def write_split(
    folder: Path, stem: str, metadata: Mapping[str, Any], parts: Sequence[Sequence[TinyTensor]]
) -> list[Path]:
    """A split set: all of `metadata` in part 1, `split.*` in each part."""
    folder.mkdir(parents=True, exist_ok=True)
    total, paths = sum(len(part) for part in parts), []
    for number, part in enumerate(parts):
        split = {
            "split.no": Typed("u16", number),
            "split.count": Typed("u16", len(parts)),
            "split.tensors.count": Typed("i32", total),
        }
        path = folder / f"{stem}-{number + 1:05d}-of-{len(parts):05d}.gguf"
        paths.append(write_gguf(path, {**(metadata if number == 0 else {}), **split}, part))
    return paths


@dataclass
class TinyMoE:
    """A random model before it is packed: change `metadata` or `tensors`, then `write`."""

    metadata: dict[str, Any]
    tensors: list[TinyTensor]
    weights: dict[str, np.ndarray] = field(default_factory=dict)  # numpy order; experts [E, rows, cols], stacked name

    def write(self, path: Path) -> Path:
        return write_gguf(path, self.metadata, self.tensors)


def byte_vocabulary() -> dict[str, Any]:
    """256 byte tokens (byte-level BPE alphabet) and three control tokens: 256 begin, 257 end, 258 end of turn."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in visible]
    alphabet = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [alphabet[b] for b in range(256)] + ["<|begin|>", "<|end|>", "<|turn|>"],
        "tokenizer.ggml.token_type": Typed("i32", [1] * 256 + [3] * 3),
        "tokenizer.ggml.merges": Typed("str", ["t h", "h e", "i n"]),
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.ggml.eot_token_id": 258,
        "tokenizer.ggml.add_bos_token": False,
    }


def tiny_moe(
    architecture: str = "olmoe",
    *,
    layout: str = "stacked",
    num_layers: int = 2,
    num_experts: int = 8,
    num_experts_per_tok: int = 2,
    hidden: int = 64,
    expert_width: int = 32,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    seed: int = 0,
) -> TinyMoE:
    """A random F32 model: "olmoe", "qwen3moe" or "llama"; experts "stacked", "per-expert", "fused" (gate first)."""
    rng = np.random.default_rng(seed)
    vocabulary = byte_vocabulary()
    vocab_size, head = len(vocabulary["tokenizer.ggml.tokens"]), hidden // num_heads
    kv = num_kv_heads * head
    a = architecture
    metadata: dict[str, Any] = {
        "general.architecture": a,
        "general.name": f"tiny {a}",
        f"{a}.block_count": num_layers,
        f"{a}.context_length": 128,
        f"{a}.embedding_length": hidden,
        f"{a}.feed_forward_length": expert_width,
        f"{a}.attention.head_count": num_heads,
        f"{a}.attention.head_count_kv": num_kv_heads,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{a}.rope.freq_base": 10000.0,
        f"{a}.expert_count": num_experts,
        f"{a}.expert_used_count": num_experts_per_tok,
        **vocabulary,
    }
    if a == "qwen3moe":
        metadata[f"{a}.expert_feed_forward_length"] = expert_width
        metadata |= {f"{a}.attention.key_length": head, f"{a}.attention.value_length": head}
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocab_size, hidden)}
    for layer in range(num_layers):
        layer_shapes = _layer_shapes(a, hidden, num_heads * head, kv, head, num_experts, expert_width)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    shapes |= {"output_norm": (hidden,), "output": (vocab_size, hidden)}
    weights = {f"{name}.weight": _random_weight(rng, name, shape) for name, shape in shapes.items()}
    tensors = [t for name, array in weights.items() for t in _tensors_of(name, array, weights, layout)]
    return TinyMoE(metadata, tensors, weights)


def _layer_shapes(
    a: str, hidden: int, q: int, kv: int, head: int, experts: int, width: int
) -> dict[str, tuple[int, ...]]:
    norms: dict[str, dict[str, tuple[int, ...]]] = {
        "olmoe": {"attn_q_norm": (q,), "attn_k_norm": (kv,)},
        "qwen3moe": {"attn_q_norm": (head,), "attn_k_norm": (head,)},
    }
    return {
        "attn_norm": (hidden,),
        "attn_q": (q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        **norms.get(a, {}),
        "attn_output": (hidden, q),
        "ffn_norm": (hidden,),
        "ffn_gate_inp": (experts, hidden),
        "ffn_gate_exps": (experts, width, hidden),
        "ffn_up_exps": (experts, width, hidden),
        "ffn_down_exps": (experts, hidden, width),
    }


def _random_weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.standard_normal(shape).astype(np.float32)
    return np.float32(1) + np.float32(0.1) * values if name.endswith("norm") else values / np.float32(shape[-1] ** 0.5)


def _tensors_of(name: str, array: np.ndarray, weights: Mapping[str, np.ndarray], layout: str) -> list[TinyTensor]:
    if "_exps" not in name or layout == "stacked":
        return [f32(name, array)]
    if layout == "per-expert":
        return [f32(name.replace("_exps", f".{expert}"), array[expert]) for expert in range(len(array))]
    if "ffn_down" in name:
        return [f32(name, array)]
    if "ffn_up" in name:
        return []
    up = weights[name.replace("gate", "up")]
    return [f32(name.replace("gate", "gate_up"), np.concatenate([array, up], axis=1))]
