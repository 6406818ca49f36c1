"""SentencePiece BPE ("llama" and "gemma4" in a GGUF): the neighbours whose joint piece scores best merge first.

Run by the `tokenizers` library: every way to cut a piece in two known pieces becomes a merge, ranked by the score of
the whole. Text without a token becomes bytes. Only plain text goes in: special tokens are cut out before
(`models.tokenizer_special`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

from models.errors import GGUFError, UsageError
from models.tokenizer_vocab import TokenType, Vocabulary, encodable, flag, read_merges

SPACE = "\u2581"
SCHEMES = ("legacy", "first", "always", "never")
_BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]
_MERGEABLE = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNDEFINED)


class SentencePieceBpe:
    """Encoder for one vocabulary. `notes`: what was found wrong with it and how that was handled, for the user.

    `scheme` says when a text gets a space in front: "legacy" always at the start and after every special token (what
    llama.cpp does where `add_space_prefix` is true), "always" likewise unless it begins with a space, "first" only at
    the very start unless it begins with a space, "never". `pearl.tokenizer.space_prefix` may name it.
    """

    def __init__(self, vocab: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self.notes: list[str] = []
        self.scheme = _read_scheme(metadata, vocab.model)
        self._table = encodable(vocab.tokens)
        self._retype_bytes(vocab)
        self._bytes = {vocab.tokens[i]: _byte_value(vocab.tokens[i]) for i in vocab.ids_of(TokenType.BYTE)}
        unknown = vocab.special_ids.get("unk")
        self._unk = vocab.tokens[unknown] if unknown is not None and vocab.tokens[unknown] in self._table else None
        self._encoder = tokenizers.Tokenizer(
            models.BPE(
                vocab=self._table, merges=self._merges(vocab, metadata),
                unk_token=self._unk, fuse_unk=True, byte_fallback=True,
            )
        )  # fmt: skip
        self._any_char = len(self._bytes) == 256 or self._unk is not None

    def _retype_bytes(self, vocab: Vocabulary) -> None:
        """Files made from tokenizer.json type the byte tokens as normal: with all 256 there, they are byte tokens."""
        ids = [self._table.get(name, -1) for name in _BYTE_NAMES]
        normal = [i for i in ids if i >= 0 and vocab.types[i] == TokenType.NORMAL]
        if min(ids) >= 0 and normal:
            vocab.types[normal] = TokenType.BYTE
            self.notes.append(f"{len(normal)} byte tokens <0x00>..<0xFF> are typed as normal text; read as bytes")

    def _merges(self, vocab: Vocabulary, metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Pairs in the order they merge: the file's own, or by score. No text merges into a control or byte token."""
        mergeable, table = np.isin(vocab.types, _MERGEABLE), self._table
        if "tokenizer.ggml.merges" in metadata or vocab.model == "gemma4":
            known = [(a, b) for a, b in read_merges(metadata) if a in table and b in table and a + b in table]
            return [(a, b) for a, b in known if mergeable[table[a + b]]]
        if vocab.scores is None:
            raise GGUFError("the file holds no scores (tokenizer.ggml.scores), which a llama vocabulary needs")
        scores = vocab.scores.tolist()
        ranked = [
            (-scores[token_id], -cut, text[:cut], text[cut:])
            for text, token_id in table.items()
            if mergeable[token_id]
            for cut in range(1, len(text))
            if text[:cut] in table and text[cut:] in table
        ]
        ranked.sort()
        return [(left, right) for _, _, left, right in ranked]

    def encode(self, text: str, at_start: bool, after_special: bool) -> list[int]:
        """Ids of a plain text that stands at the start of the whole, or after a special token, or neither.

        UsageError when a character has neither a token nor byte tokens and the vocabulary has no unknown token.
        """
        adds = self.space_was_added(at_start, after_special)
        if adds and (self.scheme == "legacy" or not text.startswith((" ", SPACE))):
            text = SPACE + text
        text = text.replace(" ", SPACE)
        if not self._any_char:
            self._check_chars(text)
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return ids

    def space_was_added(self, at_start: bool, after_special: bool) -> bool:
        """Whether a text at this place begins with a space that may not be its writer's."""
        if self.scheme in ("legacy", "always"):
            return at_start or after_special
        return self.scheme == "first" and at_start

    def _check_chars(self, text: str) -> None:
        for char in sorted(set(text)):
            if char not in self._table and not all(_BYTE_NAMES[byte] in self._table for byte in char.encode()):
                raise UsageError(f"the vocabulary has no token for {char!r}, no byte tokens and no unknown token")

    def token_bytes(self, text: str) -> bytes:
        """The bytes that a normal or byte token stands for."""
        if text in self._bytes:
            return self._bytes[text]
        return text.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def _read_scheme(metadata: Mapping[str, Any], model: str) -> str:
    scheme = metadata.get("pearl.tokenizer.space_prefix")
    if scheme is None:
        return "legacy" if flag(metadata, "tokenizer.ggml.add_space_prefix", model == "llama") else "never"
    if scheme not in SCHEMES:
        raise GGUFError(f"pearl.tokenizer.space_prefix is {scheme!r}; supported: {', '.join(SCHEMES)}")
    return str(scheme)


def _byte_value(text: str) -> bytes:
    if text not in _BYTE_NAMES:
        raise GGUFError(f"token {text!r} is typed as a byte but is not written <0x00> to <0xFF>")
    return bytes([_BYTE_NAMES.index(text)])
