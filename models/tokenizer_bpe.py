"""Byte-level BPE ("gpt2" in a GGUF): pre-tokenizer patterns, then merges, through the `tokenizers` library.

Only plain text goes in: special tokens are cut out before (`models.tokenizer_special`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from models.errors import GGUFError, UsageError
from models.pre_tokenizers import PreTokenizer
from models.tokenizer_vocab import TokenType, Vocabulary, encodable, read_merges

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
# The GPT-2 alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 on, in rising order.
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + n): byte for n, byte in enumerate(b for b in range(256) if b not in set(_PRINTABLE))
}


class ByteLevelBpe:
    """Encoder for one vocabulary. `notes`: what was found wrong with it and how that was handled, for the user."""

    def __init__(self, vocab: Vocabulary, metadata: Mapping[str, Any], pre: PreTokenizer) -> None:
        self.notes: list[str] = []
        table = encodable(vocab.tokens)
        merges = read_merges(metadata)
        self._drop_unmergeable(table, vocab, merges)
        model = self._build(table, merges, pre.ignore_merges)
        self._encoder = tokenizers.Tokenizer(model)
        splits = [pre_tokenizers.Split(_regex(pattern), behavior="isolated") for pattern in pre.splits]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._encoder.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
        self._absent_bytes = frozenset(byte for char, byte in _BYTE_OF.items() if char not in table)

    @staticmethod
    def _drop_unmergeable(table: dict[str, int], vocab: Vocabulary, merges: list[tuple[str, str]]) -> None:
        """Take control tokens out of `table`, so that no plain text can become one, unless merges need them."""
        controls = {vocab.tokens[i] for i in vocab.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)} & table.keys()
        for text in controls.difference(chain.from_iterable(merges), map("".join, merges)):
            del table[text]

    def _build(self, table: dict[str, int], merges: list[tuple[str, str]], ignore_merges: bool) -> models.BPE:
        try:
            return models.BPE(vocab=table, merges=merges, ignore_merges=ignore_merges)
        except Exception as error:  # the library raises bare Exception for a merge with a token that is not there
            usable = [(a, b) for a, b in merges if a in table and b in table and a + b in table]
            if len(usable) == len(merges):
                raise GGUFError(f"tokenizer.ggml.merges do not fit the vocabulary: {error}") from error
        unusable = len(merges) - len(usable)
        self.notes.append(f"{unusable} of {len(merges)} merges name tokens that the vocabulary lacks; left out")
        return models.BPE(vocab=table, merges=usable, ignore_merges=ignore_merges)

    def encode(self, text: str, at_start: bool, after_special: bool) -> list[int]:
        """Ids of a plain text; where it stands makes no difference. UsageError for a byte that has no token."""
        if self._absent_bytes and not self._absent_bytes.isdisjoint(raw := text.encode()):
            missing = min(self._absent_bytes & set(raw))
            raise UsageError(f"the vocabulary has no token for byte 0x{missing:02X}, which the text contains")
        ids: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, text: str) -> bytes:
        """The bytes that a normal token stands for."""
        try:
            return bytes([_BYTE_OF[char] for char in text])
        except KeyError:  # a token that was stored as plain text
            return text.encode("utf-8", "surrogateescape")

    def space_was_added(self, at_start: bool, after_special: bool) -> bool:
        return False


def _regex(pattern: str) -> Regex:
    try:
        return Regex(pattern)
    except Exception as error:  # the library raises bare Exception
        raise GGUFError(f"pre-tokenizer pattern {pattern!r} is not a regular expression: {error}") from error
