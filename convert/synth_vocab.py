"""A made-up but valid vocabulary of any size, so that a synthetic model opens, tokenizes and prints everywhere a real
one does.
"""

from __future__ import annotations

import itertools

import numpy as np

from convert.gguf_metadata import Metadata

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_LETTERS = (
    [chr(c) for c in range(ord("a"), ord("z") + 1)]
    + [chr(c) for c in range(ord("A"), ord("Z") + 1)]
    + list("0123456789")
)


def byte_alphabet() -> list[str]:
    """The 256 printable characters that stand for bytes in byte-level BPE, in byte order (the GPT-2 table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(shifted)) for b in range(256)]


def add_byte_level_vocab(metadata: Metadata, vocab_size: int, pre_tokenizer: str) -> None:
    """A byte-level BPE vocabulary: bytes, merged pairs, triples and runs of four, and one control token that ends the
    text.
    """
    space = byte_alphabet()[ord(" ")]
    pairs = [(a, b) for a, b in itertools.product([space, *_LETTERS], _LETTERS)]
    triples = ((a + b, c) for (a, b) in pairs for c in _LETTERS)
    fours = ((a + b + c, d) for (a, b) in pairs for c in _LETTERS for d in _LETTERS)
    tokens = byte_alphabet()
    merges = list(itertools.islice(itertools.chain(pairs, triples, fours), vocab_size - len(tokens) - 1))
    tokens += [a + b for a, b in merges]
    if len(tokens) != vocab_size - 1:
        most = 257 + 63 * 62 * (1 + 62 + 62**2)
        raise ValueError(f"no made-up vocabulary of {vocab_size} tokens: sizes from 257 to {most} can be made")
    types = np.full(vocab_size, _NORMAL, dtype=np.int32)
    types[-1] = _CONTROL
    metadata.string("tokenizer.ggml.model", "gpt2")
    metadata.string("tokenizer.ggml.pre", pre_tokenizer)
    metadata.strings("tokenizer.ggml.tokens", [*tokens, "<|endoftext|>"])
    metadata.array("tokenizer.ggml.token_type", types)
    metadata.strings("tokenizer.ggml.merges", [f"{a} {b}" for a, b in merges])
    metadata.u32("tokenizer.ggml.eos_token_id", vocab_size - 1)
    metadata.u32("tokenizer.ggml.bos_token_id", vocab_size - 1)
    metadata.boolean("tokenizer.ggml.add_bos_token", False)


def add_sentencepiece_vocab(metadata: Metadata, vocab_size: int) -> None:
    """A SentencePiece-style vocabulary: three special tokens, the 256 byte tokens, then letters and their
    combinations by falling score.
    """
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    starts = ["\u2581", *_LETTERS]
    pieces = itertools.chain(
        starts,
        (a + b for a, b in itertools.product(starts, _LETTERS)),
        (a + b + c for a, b, c in itertools.product(starts, _LETTERS, _LETTERS)),
    )
    tokens = [*special, *itertools.islice(pieces, vocab_size - len(special))]
    if len(tokens) != vocab_size:
        raise ValueError(f"no made-up vocabulary of {vocab_size} tokens can be made")
    scores = np.zeros(vocab_size, dtype=np.float32)
    scores[len(special) :] = -np.arange(vocab_size - len(special), dtype=np.float32)
    types = np.full(vocab_size, _NORMAL, dtype=np.int32)
    types[: len(special)] = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256
    metadata.string("tokenizer.ggml.model", "llama")
    metadata.string("tokenizer.ggml.pre", "default")
    metadata.strings("tokenizer.ggml.tokens", tokens)
    metadata.array("tokenizer.ggml.scores", scores)
    metadata.array("tokenizer.ggml.token_type", types)
    metadata.u32("tokenizer.ggml.bos_token_id", 1)
    metadata.u32("tokenizer.ggml.eos_token_id", 2)
    metadata.u32("tokenizer.ggml.unknown_token_id", 0)
    metadata.boolean("tokenizer.ggml.add_bos_token", True)
