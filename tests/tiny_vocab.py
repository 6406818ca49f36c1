"""Small vocabularies as GGUF metadata, for tests: byte-level BPE and SentencePiece BPE, with any extra tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def gpt2_alphabet() -> list[str]:
    """The 256 characters that stand for bytes, by byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


def byte_level(
    pre: str | None = "gpt-2", merges: Sequence[str] = (), extra: Mapping[str, int] | None = None, **keys: Any
) -> dict[str, Any]:
    """256 byte tokens, then what each merge makes, then `extra` (text -> type). `keys`: further `tokenizer.ggml.*`."""
    tokens = gpt2_alphabet() + [merge.replace(" ", "") for merge in merges]
    types = [NORMAL] * len(tokens) + list((extra or {}).values())
    metadata = _metadata("gpt2", [*tokens, *(extra or {})], types, keys)
    metadata["tokenizer.ggml.merges"] = list(merges)
    return metadata if pre is None else metadata | {"tokenizer.ggml.pre": pre}


def sentencepiece(pieces: Mapping[str, float], extra: Mapping[str, int] | None = None, **keys: Any) -> dict[str, Any]:
    """<unk>, <s>, </s>, then normal `pieces` (text -> score), then `extra` (text -> type, score 0)."""
    tokens = ["<unk>", "<s>", "</s>", *pieces, *(extra or {})]
    types = [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * len(pieces), *(extra or {}).values()]
    metadata = _metadata("llama", tokens, types, keys)
    scores = [0.0, 0.0, 0.0, *pieces.values(), *[0.0] * len(extra or {})]
    metadata["tokenizer.ggml.scores"] = np.array(scores, dtype=np.float32)
    return metadata


def _metadata(model: str, tokens: list[str], types: list[int], keys: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, dtype=np.int32),
        **{f"tokenizer.ggml.{name}": value for name, value in keys.items()},
    }
