"""A Hugging Face tokenizer (`tokenizer.json` and its companions, or what `tiktoken_vocab` reads in its place) as the
keys that a GGUF keeps a vocabulary in.

Two kinds are known: byte-level BPE, and SentencePiece-style BPE with byte fallback. Anything else is refused by name.
How text is cut into pieces is named after an entry of `models.pre_tokenizers` with the same regular expressions; where
there is none, the expressions themselves are stored. A model's name decides nothing.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from convert.checkpoint_folder import read_json
from convert.gguf_metadata import Metadata
from convert.hf_config import token_ids
from convert.tiktoken_vocab import read_tiktoken
from convert.tokenizer_json import check_form
from models.errors import CheckpointError, UnsupportedTokenizer, UsageError
from models.pre_tokenizers import PRE_TOKENIZERS, find_pre_tokenizer, name_of_splits

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_BYTE_TOKEN = re.compile(r"^<0x[0-9A-F]{2}>$")
_SPACE = "\u2581"
_LARGEST_ID = 2**31 - 1  # a GGUF's lists of ids are 32 bits wide
_SPECIAL_KEYS = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}


def add_tokenizer(
    metadata: Metadata, folder: Path, config: dict[str, Any], vocab_size: int, pre: str | None
) -> list[str]:
    """Write the `tokenizer.*` keys of the checkpoint in `folder`; returns lines for the user. `pre` overrides the
    recognised pre-tokenizer name.

    Raises CheckpointError where files are missing or contradict each other, UnsupportedTokenizer for a kind that is
    not known, UsageError for a `pre` that the kind has no use for.
    """
    settings = read_json(folder, "tokenizer_config.json") or {}
    tokenizer = read_json(folder, "tokenizer.json")
    if tokenizer is None:
        ranked = read_tiktoken(folder, settings, vocab_size)
        if ranked is None:
            raise CheckpointError(
                f"{folder}: no tokenizer.json; save the tokenizer in its fast form beside the weights, "
                "or convert with --no-vocab"
            )
        tokenizer, pre = ranked.tokenizer, pre or ranked.pre
        settings = ranked.roles | {key: value for key, value in settings.items() if value is not None}
    check_form(folder, tokenizer)
    model = tokenizer.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        kind = model.get("type") if isinstance(model, dict) else None
        raise UnsupportedTokenizer(f"{folder}: tokenizer.json model '{kind}' is not supported; supported: BPE")
    tokens, types = _tokens(folder, tokenizer, vocab_size)
    merges = _merges(folder, model)
    notes: list[str] = []
    if model.get("byte_fallback"):
        if pre is not None:
            raise UsageError(f"--pre {pre} is for byte-level BPE; {folder} has one of the SentencePiece kind")
        kind = "gemma4" if metadata.text("general.architecture") == "gemma4" else "llama"
        _add_sentencepiece(metadata, folder, tokenizer, tokens, types, merges, kind)
    else:
        metadata.string("tokenizer.ggml.model", "gpt2")
        notes = _add_pre_tokenizer(metadata, tokenizer, pre, str(folder))
        metadata.strings("tokenizer.ggml.tokens", tokens)
        metadata.array("tokenizer.ggml.token_type", types)
        metadata.strings("tokenizer.ggml.merges", merges)
    _add_special_ids(metadata, folder, config, settings, tokenizer, tokens)
    return notes


def _tokens(folder: Path, tokenizer: dict[str, Any], vocab_size: int) -> tuple[list[str], np.ndarray]:
    """Every token by id and its GGUF type; ids up to `vocab_size` that have none become unused [PADn]."""
    by_id: dict[int, str] = {}
    types = np.full(vocab_size, UNUSED, dtype=np.int32)
    unknown = tokenizer["model"].get("unk_token")

    def put(token: Any, number: Any, kind: int) -> None:
        if not isinstance(token, str) or type(number) is not int or not 0 <= number < vocab_size:
            raise CheckpointError(
                f"{folder}: tokenizer.json gives token {token!r} the id {number!r}, "
                f"config.json has vocab_size {vocab_size}"
            )
        by_id[number] = token
        types[number] = kind

    byte_fallback = bool(tokenizer["model"].get("byte_fallback"))
    for token, number in tokenizer["model"]["vocab"].items():
        put(token, number, BYTE if byte_fallback and _BYTE_TOKEN.match(token) else NORMAL)
    for added in tokenizer.get("added_tokens") or []:
        put(added.get("content"), added.get("id"), CONTROL if added.get("special") else USER_DEFINED)
        if added.get("content") == unknown and byte_fallback:
            types[added["id"]] = UNKNOWN
    return [by_id.get(number, f"[PAD{number}]") for number in range(vocab_size)], types


def _merges(folder: Path, model: dict[str, Any]) -> list[str]:
    """Merges as "left right"; both forms of tokenizer.json (a string, or a pair) are read."""
    merges = []
    for merge in model.get("merges") or []:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
            raise CheckpointError(f"{folder}: tokenizer.json has the merge {merge!r}, which is no pair of tokens")
        merges.append(" ".join(pair))
    return merges


def _add_pre_tokenizer(metadata: Metadata, tokenizer: dict[str, Any], pre: str | None, where: str) -> list[str]:
    """Record how text is cut before merging: `pre`, else the name of what `tokenizer.json` does, else its patterns.

    Raises UnsupportedTokenizer for a step that is no cutting by patterns.
    """
    if pre is not None:
        find_pre_tokenizer(pre)
        metadata.string("tokenizer.ggml.pre", pre)
        return []
    splits = _splits(tokenizer.get("pre_tokenizer"), where)
    ignore_merges = bool(tokenizer["model"].get("ignore_merges"))
    name = name_of_splits(splits, ignore_merges)
    if name is not None:
        metadata.string("tokenizer.ggml.pre", name)
        return []
    for pattern in splits:
        try:
            tokenizers.Regex(pattern)
        except Exception as error:  # the library raises bare Exception
            raise UnsupportedTokenizer(f"{where}: tokenizer.json cuts text by {pattern!r}: {error}") from error
    # Without a name llama.cpp says that it does not know how to cut the text; a wrong name would be believed.
    metadata.strings("pearl.tokenizer.splits", splits)
    metadata.boolean("pearl.tokenizer.ignore_merges", ignore_merges)
    return [
        f"tokenizer.json cuts text by {list(splits)}, which has no name in a GGUF; the patterns are stored for pearl, "
        "other programs do not read them (--pre NAME stores a name)"
    ]


def _splits(step: Any, where: str) -> tuple[str, ...]:
    """The regular expressions of a pre-tokenizer, in order; byte-level mapping itself is understood."""
    gpt2 = PRE_TOKENIZERS["gpt-2"].splits
    kind = step.get("type") if isinstance(step, dict) else None
    if kind == "Sequence":
        return tuple(pattern for part in step.get("pretokenizers") or [] for pattern in _splits(part, where))
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return gpt2 if step.get("use_regex", True) else ()
    if kind == "Digits":
        return (r"\p{N}",) if step.get("individual_digits") else (r"\p{N}+",)
    if kind == "Split":
        isolates = step.get("behavior") == "Isolated" and not step.get("invert")
        isolates = isolates or (step.get("behavior") == "Removed" and bool(step.get("invert")))
        pattern = step.get("pattern") or {}
        if isolates and isinstance(pattern.get("Regex"), str):
            return (pattern["Regex"],)
        if isolates and isinstance(pattern.get("String"), str):
            return (re.escape(pattern["String"]),)
    raise UnsupportedTokenizer(f"{where}: tokenizer.json has the pre-tokenizer step {step!r}, which is not supported")


def _add_sentencepiece(
    metadata: Metadata,
    folder: Path,
    tokenizer: dict[str, Any],
    tokens: list[str],
    types: np.ndarray,
    merges: list[str],
    kind: str,
) -> None:
    """Scores are the negated ranks of the merges that make each token: the order in which SentencePiece merges, too."""
    rank: dict[str, int] = {}
    for index, merge in enumerate(merges):
        rank.setdefault(merge.replace(" ", "", 1), index)
    last = float(len(merges))
    scores = [
        0.0 if kind in (CONTROL, UNKNOWN, BYTE) else -float(rank.get(t, last))
        for t, kind in zip(tokens, types, strict=True)
    ]
    metadata.string("tokenizer.ggml.model", kind)
    metadata.string("tokenizer.ggml.pre", "default" if kind == "llama" else kind)
    metadata.strings("tokenizer.ggml.tokens", tokens)
    metadata.array("tokenizer.ggml.scores", np.array(scores, dtype=np.float32))
    metadata.array("tokenizer.ggml.token_type", types)
    metadata.strings("tokenizer.ggml.merges", merges)
    scheme = _prepend_scheme(tokenizer, str(folder))
    metadata.boolean("tokenizer.ggml.add_space_prefix", scheme != "never")
    metadata.string("pearl.tokenizer.space_prefix", scheme)


def _prepend_scheme(tokenizer: dict[str, Any], where: str) -> str:
    """When a space is put before a text: "first" | "always" | "never" (Metaspace) or "legacy" (the Prepend
    normaliser).
    """
    step = tokenizer.get("pre_tokenizer")
    if isinstance(step, dict) and step.get("type") == "Metaspace" and step.get("replacement", _SPACE) == _SPACE:
        return str(step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never"))
    normalizer = tokenizer.get("normalizer") or {}
    steps = normalizer.get("normalizers") or [normalizer]
    replaces = any(s.get("type") == "Replace" and s.get("content") == _SPACE for s in steps)
    # Gemma cuts at spaces, of which its normaliser has left none.
    cuts_at_spaces = isinstance(step, dict) and step.get("type") == "Split" and step.get("pattern") == {"String": " "}
    if step is not None and not (replaces and cuts_at_spaces):
        raise UnsupportedTokenizer(f"{where}: tokenizer.json has the pre-tokenizer step {step!r} beside byte fallback")
    if not replaces:
        raise UnsupportedTokenizer(
            f"{where}: tokenizer.json has byte fallback without a rule that turns spaces into '{_SPACE}'"
        )
    return "legacy" if any(s.get("type") == "Prepend" and s.get("prepend") == _SPACE for s in steps) else "never"


def _add_special_ids(
    metadata: Metadata,
    folder: Path,
    config: dict[str, Any],
    settings: dict[str, Any],
    tokenizer: dict[str, Any],
    tokens: list[str],
) -> None:
    ids = {token: number for number, token in enumerate(tokens)}
    generation = read_json(folder, "generation_config.json") or {}
    found: dict[str, int] = {}
    for hf_name, gguf_name in _SPECIAL_KEYS.items():
        content = settings.get(f"{hf_name}_token")
        content = content.get("content") if isinstance(content, dict) else content
        fallback = token_ids(config.get(f"{hf_name}_token_id"), f"{folder / 'config.json'}: {hf_name}_token_id")
        if isinstance(content, str) and content in ids:
            found[hf_name] = ids[content]
        elif fallback:
            found[hf_name] = fallback[0]
        if found.get(hf_name, 0) >= len(tokens):
            raise CheckpointError(
                f"{folder}: {hf_name}_token_id {found[hf_name]} is not below vocab_size {len(tokens)}"
            )
        if hf_name in found:
            metadata.u32(f"tokenizer.ggml.{gguf_name}_token_id", found[hf_name])
    stops = {found["eos"]} if "eos" in found else set()
    stops.update(token_ids(config.get("eos_token_id"), f"{folder / 'config.json'}: eos_token_id"))
    stops.update(token_ids(generation.get("eos_token_id"), f"{folder / 'generation_config.json'}: eos_token_id"))
    if max(stops, default=0) > _LARGEST_ID:
        raise CheckpointError(f"{folder}: eos_token_id {max(stops)} is not below vocab_size {len(tokens)}")
    if stops:
        metadata.array("tokenizer.ggml.eos_token_ids", np.array(sorted(stops), dtype=np.int32))
    for which in ("bos", "eos"):
        adds = _adds(tokenizer, settings, which, tokens[found[which]] if which in found else None)
        if adds is not None:
            metadata.boolean(f"tokenizer.ggml.add_{which}_token", adds)


def _adds(tokenizer: dict[str, Any], settings: dict[str, Any], which: str, token: str | None) -> bool | None:
    """Whether encoding puts BOS before (or EOS behind) a text: the post-processor says so, else the settings, else
    nobody.
    """
    post = tokenizer.get("post_processor") or {}
    steps = post.get("processors") or [post]
    templates = [step for step in steps if step.get("type") == "TemplateProcessing"]
    if templates:
        single = templates[0].get("single") or []
        special = (single[0] if which == "bos" else single[-1]).get("SpecialToken") if single else None
        return special is not None and (token is None or special.get("id") == token)
    value = settings.get(f"add_{which}_token")
    return value if isinstance(value, bool) else None
