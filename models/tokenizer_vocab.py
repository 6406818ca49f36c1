"""A vocabulary as a GGUF holds it: token texts, types, scores, special ids. Checks them; encodes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from models.errors import GGUFError
from models.gguf_values import StringArray


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`. CONTROL and UNKNOWN are read from text only on request, USER_DEFINED always."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_IDS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",  # spelt so in the format
    "pad": "tokenizer.ggml.padding_token_id",
}
# What "llama" vocabularies mean where the file names no ids, as llama.cpp has it.
_LLAMA_DEFAULT_IDS = {"bos": 1, "eos": 2, "unk": 0}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[id]` may hold surrogate escapes for bytes that are not UTF-8; a GGUF's packed array is kept as it is.

    `types` int8 [V], `scores` float32 [V] or None.
    `special_ids`: name of SPECIAL_IDS -> token id, only those that exist. `eos_ids`: the ends that a converter listed.
    """

    model: str
    tokens: Sequence[str]
    types: np.ndarray
    scores: np.ndarray | None
    special_ids: dict[str, int]
    eos_ids: tuple[int, ...]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], model: str) -> Vocabulary:
        """Raises GGUFError for a missing or contradictory table, and for a special id outside the vocabulary."""
        tokens = text_list(metadata, "tokenizer.ggml.tokens")
        if not tokens:
            raise GGUFError("the file holds no vocabulary (tokenizer.ggml.tokens)")
        types = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens), "iu")
        scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens), "iuf")
        special_ids = _special_ids(metadata, model, len(tokens))
        eos_ids = tuple(_checked_id(i, "tokenizer.ggml.eos_token_ids", len(tokens)) for i in _eos_list(metadata))
        if types is None:
            types = np.full(len(tokens), TokenType.NORMAL)
            types[list({*special_ids.values(), *eos_ids})] = TokenType.CONTROL
        elif types.min() < 0 or types.max() > max(TokenType):
            raise GGUFError(f"tokenizer.ggml.token_type holds {types.max()}; types are 0 to {int(max(TokenType))}")
        scores = None if scores is None else scores.astype(np.float32)
        return cls(model, tokens, types.astype(np.int8), scores, special_ids, eos_ids)

    def ids_of(self, *types: TokenType) -> list[int]:
        """Ids of all tokens of these types, rising."""
        ids: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return ids


def encodable(tokens: Sequence[str]) -> dict[str, int]:
    """Text -> id of the tokens that text can produce: not the empty ones and not those that are no valid UTF-8.

    Raises GGUFError when two tokens have the same text.
    """
    tokens = list(tokens)
    table = {text: token_id for token_id, text in enumerate(tokens)}
    n_empty = tokens.count("")
    if len(table) != len(tokens) - max(n_empty - 1, 0):
        first: dict[str, int] = {}
        for token_id, text in enumerate(tokens):
            if text and first.setdefault(text, token_id) != token_id:
                raise GGUFError(f"tokenizer.ggml.tokens: tokens {first[text]} and {token_id} are both {text!r}")
    table.pop("", None)
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        table = {text: token_id for text, token_id in table.items() if _is_utf8(text)}
    return table


def read_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`tokenizer.ggml.merges` as pairs, in order of rank. GGUFError when it is missing or an entry is no pair."""
    stored = text_list(metadata, "tokenizer.ggml.merges")
    if stored is None:
        raise GGUFError("the file holds no merges (tokenizer.ggml.merges), which a vocabulary of this kind needs")
    merges: list[Any] = [tuple(entry.split(" ", 1)) for entry in stored]
    for number, merge in enumerate(merges):
        if len(merge) != 2 or not all(merge):
            raise GGUFError(f"tokenizer.ggml.merges[{number}] is {' '.join(merge)!r}, not two tokens")
    return merges


def text_value(metadata: Mapping[str, Any], key: str) -> str | None:
    """The text under `key`, None where it is missing. GGUFError where something else is there."""
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise GGUFError(f"{key} is no text")
    return value


def text_list(metadata: Mapping[str, Any], key: str) -> Sequence[str] | None:
    """The same for a list of texts."""
    value = metadata.get(key)
    is_empty = isinstance(value, np.ndarray) and not value.size  # a list of nothing has no kind of its own
    if value is not None and not is_empty and not isinstance(value, (StringArray, list, tuple)):
        raise GGUFError(f"{key} is no list of texts")
    return [] if is_empty else value


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _numbers(metadata: Mapping[str, Any], key: str, length: int, kinds: str) -> np.ndarray | None:
    value = metadata.get(key)
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in kinds or array.shape != (length,):
        raise GGUFError(f"{key} must be {length} numbers, one a token; found {array.shape} of type {array.dtype}")
    return array


def _special_ids(metadata: Mapping[str, Any], model: str, vocab_size: int) -> dict[str, int]:
    found = {}
    for name, key in SPECIAL_IDS.items():
        if metadata.get(key) is not None:
            found[name] = _checked_id(metadata[key], key, vocab_size)
        elif model == "llama" and _LLAMA_DEFAULT_IDS.get(name, vocab_size) < vocab_size:
            found[name] = _LLAMA_DEFAULT_IDS[name]
    return found


def _checked_id(value: Any, key: str, vocab_size: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise GGUFError(f"{key} must be a whole number; found {value!r}")
    if not 0 <= value < vocab_size:
        raise GGUFError(f"{key} is {value}, outside the vocabulary of {vocab_size} tokens")
    return int(value)


def _eos_list(metadata: Mapping[str, Any]) -> list[Any]:
    listed = metadata.get("tokenizer.ggml.eos_token_ids")
    return [] if listed is None else np.atleast_1d(np.asarray(listed)).tolist()


def flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    """A true-or-false value; GGUFError when the file stores something else under `key`."""
    value = metadata.get(key, default)
    if not isinstance(value, (bool, np.bool_)):
        raise GGUFError(f"{key} must be true or false; found {value!r}")
    return bool(value)
