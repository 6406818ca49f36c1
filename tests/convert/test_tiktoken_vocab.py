"""Vocabularies in tiktoken's form: ranks become merges that give the same tokens, special tokens stand behind them."""

from __future__ import annotations

import base64
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.pipeline import ConvertOptions, convert
from convert.synth_vocab import byte_alphabet
from convert.tiktoken_vocab import merges_of, read_tiktoken
from models.errors import CheckpointError
from models.gguf import GGUFModel
from models.tokenizer import Tokenizer
from tests.convert.checkpoints import config, weights, write_folder

SHARED = Path(os.environ.get("PEARL_SHARED") or Path(__file__).resolve().parents[3] / "shared")
QWEN2 = SHARED / "data/vocab/ggml-vocab-qwen2.gguf"
HY = {"tokenizer_class": "HYTokenizer"}
KIMI = {
    "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}, "bos_token": None,
    "added_tokens_decoder": {
        "265": {"content": "[EOS]", "special": True}, "266": {"content": "<|im_end|>", "special": True},
        "267": {"content": "<think>", "special": False},
    },
}  # fmt: skip
PIECES = ["ab", "abc", "th", "he", "the", " the", "\u00e9", "AB", "xyz"]


def lines(tokens: list[bytes]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def tokens_of(pieces: list[str]) -> list[bytes]:
    return [bytes([byte]) for byte in range(256)] + [piece.encode() for piece in pieces]


def by_ranks(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """tiktoken's own rule: a piece that has a rank is that; else the neighbours of the lowest rank are joined."""
    if piece in ranks:
        return [ranks[piece]]
    parts = [bytes([byte]) for byte in piece]
    while True:
        joined = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not joined:
            return [ranks[part] for part in parts]
        at = min(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def folder_with(path: Path, settings: dict[str, Any], file: str, raw: bytes, vocab_size: int, **more: Any) -> Path:
    """A tiny model with this vocabulary in place of a tokenizer.json."""
    tensors = weights()
    rows = np.resize(tensors["lm_head.weight"], (vocab_size, tensors["lm_head.weight"].shape[1]))
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"] = rows
    folder = write_folder(path, tensors, config(vocab_size=vocab_size, **more))
    (folder / file).write_bytes(raw)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def metadata_of(folder: Path) -> dict[str, Any]:
    with GGUFModel.open(convert(folder, folder.parent / "out", ConvertOptions(quant="f32"))) as model:
        return dict(model.metadata)


CASES = [
    (HY, "hy.tiktoken", "hunyuan",
     [["the"], ["thhe", " ", " the"], ["xabcab"], ["\u4e2dab\u6587"], ["1", "2"], ["ABab"]]),
    (KIMI, "tiktoken.model", "kimi-k2",
     [["the"], ["thhe", " ", " the"], ["xabcab"], ["\u4e2d", "ab", "\u6587"], ["123", "4"], ["xyz"], ["ABab"]]),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "file", "pre", "texts"), CASES)
def test_texts_come_to_the_tokens_of_the_ranks(
    settings: dict[str, Any], file: str, pre: str, texts: list[list[str]], tmp_path: Path
) -> None:
    tokens = tokens_of(PIECES)
    keys = metadata_of(folder_with(tmp_path / "hf", settings, file, lines(tokens), len(tokens) + 210))
    assert keys["tokenizer.ggml.pre"] == pre
    ours, ranks = Tokenizer.from_metadata(keys), {token: rank for rank, token in enumerate(tokens)}
    for pieces in texts:
        expected = [token for piece in pieces for token in by_ranks(piece.encode(), ranks)]
        assert ours.encode("".join(pieces), add_bos=False) == expected, pieces
        assert ours.decode(expected) == "".join(pieces)


def test_hunyuans_special_tokens_stand_behind_the_ranks(tmp_path: Path) -> None:
    tokens = tokens_of(PIECES)
    n = len(tokens)
    folder = folder_with(tmp_path / "hf", HY, "hy.tiktoken", lines(tokens), n + 210, bos_token_id=1, eos_token_id=n + 3)
    keys = metadata_of(folder)
    named = keys["tokenizer.ggml.tokens"][n:]
    assert list(named[:6]) == ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", "<|extra_0|>"]
    assert (named[-1], set(keys["tokenizer.ggml.token_type"][n:].tolist())) == ("<|extra_204|>", {3})
    assert keys["tokenizer.ggml.bos_token_id"] == n + 2  # whatever config.json says
    tokenizer = Tokenizer.from_metadata(keys)
    assert tokenizer.stop_ids == {n, n + 3}
    assert tokenizer.encode("<|startoftext|>the<|extra_0|>", add_bos=False, special=True)[::2] == [n + 1, n + 5]


def test_hunyuans_ranks_are_counted_without_what_came_before(tmp_path: Path) -> None:
    tokens = tokens_of(["ab", "ab", "abc"])
    (tmp_path / "hy.tiktoken").write_bytes(lines(tokens))
    found = read_tiktoken(tmp_path, HY, 500)
    assert found is not None
    vocab = found.tokenizer["model"]["vocab"]
    assert (vocab["ab"], vocab["abc"], len(vocab)) == (256, 257, 258)
    assert found.tokenizer["added_tokens"][0] == {"id": 258, "content": "<|endoftext|>", "special": True}


def test_kimis_special_tokens_are_named_or_reserved(tmp_path: Path) -> None:
    tokens = tokens_of(PIECES)
    assert len(tokens) == 265
    keys = metadata_of(folder_with(tmp_path / "hf", KIMI, "tiktoken.model", lines(tokens), 270))
    assert list(keys["tokenizer.ggml.tokens"][265:]) == [
        "[EOS]", "<|im_end|>", "<think>", "<|reserved_token_268|>", "<|reserved_token_269|>"
    ]  # fmt: skip
    assert keys["tokenizer.ggml.token_type"][265:].tolist() == [3, 3, 4, 3, 3]
    assert keys["tokenizer.ggml.eos_token_id"] == 265
    assert Tokenizer.from_metadata(keys).stop_ids == {265, 266}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"YQ== 0\nYg==\n", "line 2 is no byte string"),
        (b"YQ== 0\n!!! 1\n", "line 2 is no byte string"),
        (b"YQ== 0\nYg== x\n", "line 2 is no byte string"),
        (b"YQ== 0\nYg== 2\n", "its ranks are not those from 0 on"),
        (b"", "its ranks are not those from 0 on"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(raw: bytes | None, says: str, tmp_path: Path) -> None:
    if raw is not None:
        (tmp_path / "tiktoken.model").write_bytes(raw)
    with pytest.raises(CheckpointError, match=f"tiktoken.model: {says}"):
        read_tiktoken(tmp_path, KIMI, 10)


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "QWenTokenizer"}, {"auto_map": {"AutoTokenizer": []}}])
def test_other_classes_are_not_guessed(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_bytes(lines(tokens_of(PIECES)))
    assert read_tiktoken(tmp_path, settings, 500) is None


@pytest.mark.skipif(not QWEN2.exists(), reason=f"no real vocabulary at {QWEN2} (set PEARL_SHARED)")
def test_merges_of_a_real_vocabulary_are_those_that_were_published() -> None:
    """Qwen's ids are the ranks of its own file of this form; the first of them need no later ones."""
    with GGUFModel.open(QWEN2) as model:
        tokens, merges = (list(model.metadata[f"tokenizer.ggml.{name}"][:20_000]) for name in ("tokens", "merges"))
    byte_of = {character: byte for byte, character in enumerate(byte_alphabet())}
    ranks = {bytes(byte_of[character] for character in token): rank for rank, token in enumerate(tokens)}
    assert [" ".join(pair) for pair in merges_of(ranks)] == merges[: len(tokens) - 256]
