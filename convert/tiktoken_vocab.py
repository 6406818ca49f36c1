"""Vocabularies of folders without a tokenizer.json whose code reads tiktoken's files: ranked byte strings, one a line.

How text is cut and which special tokens stand behind the ranks is in that code, not in the file; it is known here for
the tokenizer classes in `_KINDS`, as tokenizer_config.json names them. What comes out has the form of a tokenizer.json.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from convert.synth_vocab import byte_alphabet
from models.errors import CheckpointError

Ranks = dict[bytes, int]
_ALPHABET = byte_alphabet()
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Kind:
    """`specials` behind the ranks, in order; where there are none, tokenizer_config.json names some of the ids up to
    the vocabulary's end, and the others are reserved. `roles`: what applies where it names no such token. `renumbered`:
    ranks are counted anew, without byte strings that came before.
    """

    file: str
    pre: str
    specials: tuple[str, ...] = ()
    roles: tuple[tuple[str, str], ...] = ()
    renumbered: bool = False


_HUNYUAN = ("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>")
_KINDS = {
    "HYTokenizer": _Kind(
        file="hy.tiktoken",
        pre="hunyuan",
        specials=(*_HUNYUAN, *(f"<|extra_{n}|>" for n in range(205))),
        roles=(("bos_token", "<|bos|>"), ("eos_token", "<|eos|>"), ("pad_token", "<|pad|>")),
        renumbered=True,
    ),
    "TikTokenTokenizer": _Kind(
        file="tiktoken.model", pre="kimi-k2", roles=(("bos_token", "[BOS]"), ("eos_token", "[EOS]"))
    ),
}


@dataclass(frozen=True, slots=True)
class TiktokenVocabulary:
    """`tokenizer` in the form of a tokenizer.json, `pre` the name of how text is cut, `roles` of special tokens."""

    tokenizer: dict[str, Any]
    pre: str
    roles: dict[str, str]


def read_tiktoken(folder: Path, settings: dict[str, Any], vocab_size: int) -> TiktokenVocabulary | None:
    """The vocabulary of a folder whose tokenizer_config.json, `settings`, names a class that is known here; None for
    others. Raises CheckpointError for a file that is missing or holds something else.
    """
    kind = _KINDS.get(_class_of(settings))
    if kind is None:
        return None
    ranks = _read_ranks(folder / kind.file, kind.renumbered)
    model = {"vocab": {_as_text(token): rank for token, rank in ranks.items()}, "merges": merges_of(ranks)}
    if kind.specials:
        added = [{"id": n, "content": name, "special": True} for n, name in enumerate(kind.specials, len(ranks))]
    else:
        added = _named(folder, settings, len(ranks), vocab_size)
    return TiktokenVocabulary({"model": {"type": "BPE", **model}, "added_tokens": added}, kind.pre, dict(kind.roles))


def merges_of(ranks: Ranks) -> list[list[str]]:
    """The merges that make each token out of two others, in order of rank. tiktoken joins the neighbours that make the
    lowest rank, so a token's last two parts are what its bytes come to with lower ranks alone; one that they leave in
    more parts is made by no merge.
    """
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = _parts(token, rank, ranks)
            if len(parts) == 2:
                merges.append([_as_text(part) for part in parts])
    return merges


def _as_text(raw: bytes) -> str:
    """Byte-level BPE's spelling of bytes, one printable character each."""
    return "".join(_ALPHABET[byte] for byte in raw)


def _parts(token: bytes, limit: int, ranks: Ranks) -> list[bytes]:
    """`token` cut into bytes and joined again by ranks below `limit`."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [ranks.get(a + b, limit) for a, b in pairwise(parts)]
        lowest = min(found)
        if lowest >= limit:
            break
        at = found.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _read_ranks(path: Path, renumbered: bool) -> Ranks:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}; the tokenizer's class needs it") from None
    if len(raw) > _MAX_BYTES:
        raise CheckpointError(f"{path}: larger than {_MAX_BYTES >> 20} MiB; that is no vocabulary")
    ranks: Ranks = {}
    for number, line in enumerate(raw.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            decoded, stated = base64.b64decode(token, validate=True), int(rank)
        except (ValueError, binascii.Error):
            raise CheckpointError(f"{path}: line {number} is no byte string in base64 and its rank") from None
        if decoded not in ranks:
            ranks[decoded] = len(ranks) if renumbered else stated
    if not ranks or b"" in ranks or sorted(ranks.values()) != list(range(len(ranks))):
        raise CheckpointError(f"{path}: its ranks are not those from 0 on, each once, of byte strings")
    return ranks


def _named(folder: Path, settings: dict[str, Any], first: int, vocab_size: int) -> list[dict[str, Any]]:
    """What stands behind the ranks: entries of tokenizer_config.json, and reserved tokens."""
    listed = settings.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict) or not all(isinstance(entry, dict) for entry in listed.values()):
        raise CheckpointError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder is no table of tokens")
    reserved = ({"content": f"<|reserved_token_{n}|>", "special": True} for n in range(first, vocab_size))
    return [{**entry, **listed.get(str(n), {}), "id": n} for n, entry in enumerate(reserved, first)]


def _class_of(settings: dict[str, Any]) -> str:
    """The tokenizer's class; where only `auto_map` names it, behind the name of its file."""
    name = settings.get("tokenizer_class")
    mapped = settings.get("auto_map")
    if not isinstance(name, str) and isinstance(mapped, dict):
        name = mapped.get("AutoTokenizer")
        name = name[0] if isinstance(name, list) and name else name
    return name.rpartition(".")[2] if isinstance(name, str) else ""
