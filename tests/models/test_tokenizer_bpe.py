"""Byte-level BPE: pre-tokenizers by name, special tokens, odd files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from models.errors import GGUFError, UnsupportedTokenizer, UsageError
from models.pre_tokenizers import PRE_TOKENIZERS, find_pre_tokenizer, name_of_splits
from models.tokenizer import Tokenizer
from tests.tiny_vocab import CONTROL, NORMAL, UNUSED, USER_DEFINED, byte_level

DIGIT_MERGES = ("3 3", "33 3", "33 33")


def pieces(metadata: dict[str, Any], text: str, **options: Any) -> list[str]:
    tokenizer = Tokenizer.from_metadata(metadata)
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, **options)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["3333"]),
        ("olmo", ["3333"]),
        ("llama-bpe", ["333", "3"]),
        ("dbrx", ["333", "3"]),
        ("qwen2", ["3"] * 4),
        ("smollm", ["3"] * 4),
        ("deepseek-llm", ["3333"]),
        ("deepseek-v3", ["333", "3"]),
        ("kimi-k2", ["333", "3"]),
        ("afmoe", ["3", "333"]),
    ],
)
def test_the_named_pre_tokenizer_decides_how_digits_are_cut(pre: str, expected: list[str]) -> None:
    assert pieces(byte_level(pre, DIGIT_MERGES), "3333") == expected


def test_scripts_without_spaces_are_cut_apart_where_a_vocabulary_wants_it() -> None:
    splits = find_pre_tokenizer("afmoe").splits
    cut = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated") for split in splits])
    found = [piece for piece, _ in cut.pre_tokenize_str("1234567 \u4f60\u597dworld \u0e01a!b")]
    assert found == ["1", "234", "567", " ", "\u4f60\u597d", "world", " ", "\u0e01", "a", "!b"]


def test_an_unknown_pre_tokenizer_is_named_and_can_be_overridden() -> None:
    metadata = byte_level("zzz-new", DIGIT_MERGES)
    with pytest.raises(UnsupportedTokenizer, match=r"'zzz-new'.*--pre NAME.*gpt-2.*qwen2"):
        Tokenizer.from_metadata(metadata)
    assert len(Tokenizer.from_metadata(metadata, pre="qwen2").encode("3333")) == 4


def test_a_missing_pre_tokenizer_is_not_guessed() -> None:
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.ggml\.pre is missing"):
        Tokenizer.from_metadata(byte_level(None))


def test_the_converters_name_for_not_knowing_leaves_a_note() -> None:
    assert "'default'" in " ".join(Tokenizer.from_metadata(byte_level("default")).notes)
    assert Tokenizer.from_metadata(byte_level("gpt-2")).notes == ()


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_known_name_builds_and_loses_no_text(name: str) -> None:
    text = "It's 12345 naïve café's\r\n\n  日本語カタ 한국 ١٢ İ 👍🏽 <|x|> 'LL \t end  "
    tokenizer = Tokenizer.from_metadata(byte_level(name))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_name_can_be_found_from_its_patterns() -> None:
    for name in ("gpt-2", "llama-bpe", "qwen2", "dbrx", "glm4"):
        pre = find_pre_tokenizer(name)
        found = find_pre_tokenizer(name_of_splits(pre.splits, pre.ignore_merges))
        assert (found.splits, found.ignore_merges) == (pre.splits, pre.ignore_merges)
    assert name_of_splits((r"\d",), False) is None


def test_patterns_stored_by_a_converter_are_used_as_they_are() -> None:
    metadata = byte_level("zzz-new", DIGIT_MERGES) | {"pearl.tokenizer.splits": [r"\d{2}"]}
    assert pieces(metadata, "3333") == ["33", "33"]
    with pytest.raises(GGUFError, match="not a regular expression"):
        Tokenizer.from_metadata(metadata | {"pearl.tokenizer.splits": ["("]})


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", ["abc"]), ("dbrx", ["ab", "c"])])
def test_ignore_merges_takes_a_whole_piece_that_is_a_token(pre: str, expected: list[str]) -> None:
    assert pieces(byte_level(pre, ("a b",), {"abc": NORMAL}), "abc") == expected


def test_special_tokens_are_parsed_on_request_and_user_defined_ones_always() -> None:
    metadata = byte_level("gpt-2", (), {"<|x|>": CONTROL, "<|x|>y": CONTROL, "[U]": USER_DEFINED})
    assert pieces(metadata, "a[U]<|x|>", special=True) == ["a", "[U]", "<|x|>"]
    assert pieces(metadata, "a[U]<|x|>") == ["a", "[U]", *"<|x|>"]
    assert pieces(metadata, "<|x|>yz", special=True) == ["<|x|>y", "z"]


def test_plain_text_never_becomes_a_control_token() -> None:
    """`llama-bpe` takes whole pieces that are tokens; a control token that is one piece must not be among them."""
    metadata = byte_level("llama-bpe", (), {"stop": CONTROL}, add_bos_token=False)
    assert pieces(metadata, "stop") == list("stop")
    assert pieces(metadata, "stop", special=True) == ["stop"]


def test_decode_leaves_control_tokens_out_unless_asked() -> None:
    tokenizer = Tokenizer.from_metadata(byte_level("gpt-2", (), {"<|x|>": CONTROL, "[U]": USER_DEFINED}))
    ids = tokenizer.encode("a<|x|>[U]", special=True)
    assert tokenizer.decode(ids) == tokenizer.continuation(ids) == "a[U]"
    assert tokenizer.decode(ids, skip_special=False) == "a<|x|>[U]"
    assert [tokenizer.is_control(token_id) for token_id in ids] == [False, True, False]


@pytest.mark.parametrize("keys", [{}, {"add_bos_token": False}])
def test_bos_as_the_file_says_and_by_pre_tokenizer_where_it_does_not(keys: dict[str, Any]) -> None:
    extra = {"<s>": CONTROL}
    assert pieces(byte_level("gpt-2", (), extra, bos_token_id=256, **keys), "a") == ["a"]
    assert pieces(byte_level("llama-bpe", (), extra, bos_token_id=256), "a") == ["<s>", "a"]
    assert pieces(byte_level("gpt-2", (), extra, bos_token_id=256, add_bos_token=True), "a") == ["<s>", "a"]
    assert pieces(byte_level("gpt-2", (), extra, bos_token_id=256, **keys), "a", add_bos=True) == ["<s>", "a"]


def test_a_written_bos_is_not_doubled() -> None:
    metadata = byte_level("gpt-2", (), {"<s>": CONTROL}, bos_token_id=256, add_bos_token=True)
    assert pieces(metadata, "<s>a", special=True) == ["<s>", "a"]


def test_a_prompt_is_never_empty() -> None:
    def first(extra: dict[str, int], **keys: int) -> list[int]:
        return Tokenizer.from_metadata(byte_level("gpt-2", (), extra, **keys)).encode_prompt("")

    assert first({"<e>": CONTROL, "<x>": CONTROL}, eos_token_id=257) == [257]
    assert first({"<e>": CONTROL}) == [256]
    with pytest.raises(UsageError, match="the prompt is empty"):
        first({})


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_decoding_gives_the_text_back(text: str) -> None:
    for tokenizer in (QWEN_LIKE, GPT_LIKE):
        assert tokenizer.decode(tokenizer.encode(text)) == text


QWEN_LIKE = Tokenizer.from_metadata(byte_level("qwen2", ("Ġ t", "h e", "Ġt he"), {"<|e|>": CONTROL}))
GPT_LIKE = Tokenizer.from_metadata(byte_level("gpt-2", ("Ġ Ġ", "Ã ©"), {"  ": USER_DEFINED}))


@pytest.mark.parametrize("text", ["\u2029", "👨‍👩‍👧‍👦", "\0", "a\0b", "", " ", "\ufeff", "e\u0301"])
def test_odd_characters_come_back(text: str) -> None:
    assert QWEN_LIKE.decode(QWEN_LIKE.encode(text)) == text


def test_a_lone_surrogate_is_the_users_fault() -> None:
    with pytest.raises(UsageError, match="not valid Unicode at character 1"):
        QWEN_LIKE.encode("a\ud83d")


def test_token_bytes_that_are_no_utf8_are_kept() -> None:
    broken = b"\xff\xfe".decode("utf-8", "surrogateescape")
    tokenizer = Tokenizer.from_metadata(byte_level("gpt-2", (), {broken: NORMAL, "<e>": CONTROL}))
    assert tokenizer.token_bytes(256) == b"\xff\xfe"
    assert tokenizer.encode("ab") == [97, 98]


def test_a_byte_without_a_token_is_named() -> None:
    metadata = byte_level("gpt-2")
    metadata["tokenizer.ggml.tokens"][0xC3] = "gone"
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.encode("ab") == [97, 98]
    with pytest.raises(UsageError, match="0xC3"):
        tokenizer.encode("é")


def test_merges_into_nothing_are_left_out_with_a_note() -> None:
    metadata = byte_level("gpt-2", ("a b",)) | {"tokenizer.ggml.merges": ["t h", "a b"]}
    tokenizer = Tokenizer.from_metadata(metadata)
    assert [tokenizer.token_text(i) for i in tokenizer.encode("thab")] == ["t", "h", "ab"]
    assert "1 of 2 merges" in tokenizer.notes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5' is not supported; supported: gpt2, llama"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model is missing"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"], "tokenizer.ggml.token_type": None}, "tokens 0 and 2 are both 'a'"),
        ({"tokenizer.ggml.merges": None}, "no merges"),
        ({"tokenizer.ggml.merges": ["ab"]}, r"merges\[0\] is 'ab', not two tokens"),
        ({"tokenizer.ggml.token_type": np.array([1, 1], dtype=np.int32)}, "must be 256 numbers"),
        ({"tokenizer.ggml.token_type": np.array([1] * 255 + [9], dtype=np.int32)}, "holds 9"),
        ({"tokenizer.ggml.bos_token_id": 256}, "bos_token_id is 256, outside the vocabulary of 256"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "eos_token_id must be a whole number"),
        ({"tokenizer.ggml.model": np.array([1, 2])}, "tokenizer.ggml.model is no text"),
        ({"tokenizer.ggml.pre": ["qwen2"]}, "tokenizer.ggml.pre is no text"),
        ({"tokenizer.ggml.tokens": 1.5}, "tokenizer.ggml.tokens is no list of texts"),
        ({"tokenizer.ggml.tokens": np.array([], np.int32)}, "holds no vocabulary"),
        ({"tokenizer.ggml.merges": np.array([1, 2])}, "tokenizer.ggml.merges is no list of texts"),
        ({"pearl.tokenizer.splits": 7}, "pearl.tokenizer.splits is no list of texts"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token must be true or false"),
        ({"tokenizer.ggml.add_bos_token": True}, "names no tokenizer.ggml.bos_token_id"),
    ],
)
def test_a_broken_table_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises((GGUFError, UnsupportedTokenizer), match=message):
        Tokenizer.from_metadata(byte_level("gpt-2") | change)


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8"])
def test_types_may_be_stored_in_any_integer(dtype: str) -> None:
    metadata = byte_level("gpt-2", (), {"<x>": CONTROL, "": UNUSED, "other": UNUSED})
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"].astype(dtype)
    assert pieces(metadata, "<x>", special=True) == ["<x>"]
