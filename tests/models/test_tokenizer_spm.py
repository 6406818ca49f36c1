"""SentencePiece BPE: order of merges, spaces in front, byte fallback."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import GGUFError, UsageError
from models.tokenizer import Tokenizer
from tests.tiny_vocab import BYTE, BYTE_TOKENS, CONTROL, NORMAL, USER_DEFINED, sentencepiece

# Merges u+s, e+r, us+er, ▁+user, ▁+▁ in this order of preference.
USER = {"us": -1, "er": -2, "user": -3, "▁user": -4, "▁▁": -5, "▁": -6, "u": -7, "s": -8, "e": -9, "r": -10}
BYTES = dict.fromkeys(BYTE_TOKENS, BYTE)


def pieces(tokenizer: Tokenizer, text: str, **options: Any) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, add_bos=False, **options)]


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("first", ["▁user", "<X> user", "<X> ▁user", "▁user <X> user"]),
        ("always", ["▁user", "<X> ▁user", "<X> ▁user", "▁user <X> ▁user"]),
        ("never", ["user", "<X> user", "<X> ▁user", "user <X> user"]),
        ("legacy", ["▁user", "<X> ▁user", "<X> ▁ ▁user", "▁user <X> ▁user"]),
    ],
)
def test_spaces_around_a_special_token_follow_the_scheme(scheme: str, expected: list[str]) -> None:
    metadata = sentencepiece(USER, {"<X>": CONTROL}) | {"pearl.tokenizer.space_prefix": scheme}
    tokenizer = Tokenizer.from_metadata(metadata)
    texts = ["user", "<X>user", "<X> user", "user<X>user"]
    assert [" ".join(pieces(tokenizer, text, special=True)) for text in texts] == expected


@pytest.mark.parametrize(
    ("keys", "expected"), [({}, "▁user"), ({"add_space_prefix": True}, "▁user"), ({"add_space_prefix": False}, "user")]
)
def test_a_stock_file_has_only_the_bool(keys: dict[str, bool], expected: str) -> None:
    assert pieces(Tokenizer.from_metadata(sentencepiece(USER, **keys)), "user") == [expected]


def test_a_gemma4_vocabulary_merges_by_its_list_and_begins_with_bos() -> None:
    merges = ["e r", "u s", "us er", "▁ user", "▁ ▁", "\n \n"]
    metadata = sentencepiece({**USER, "\n": -11, "\n\n": -12}, {"<turn|>": CONTROL}) | {
        "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip
    tokenizer = Tokenizer.from_metadata(metadata)
    assert pieces(tokenizer, "user user  user\n\n\n") == ["user", "▁user", "▁", "▁user", "\n\n", "\n"]
    assert tokenizer.encode("user")[0] == 1
    assert tokenizer.decode(tokenizer.encode("user\n user")) == "user\n user"
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(GGUFError, match=r"no merges \(tokenizer\.ggml\.merges\)"):
        Tokenizer.from_metadata(metadata)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(GGUFError, match="supported: legacy, first, always, never"):
        Tokenizer.from_metadata(sentencepiece(USER) | {"pearl.tokenizer.space_prefix": "sometimes"})


def test_defaults_of_a_llama_vocabulary() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece(USER))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.add_bos) == (1, 2, 0, True)
    assert tokenizer.encode("user") == [1, tokenizer.encode("user", add_bos=False)[0]]
    assert tokenizer.encode("") == [1]


def spm_reference(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, plainly: the neighbours whose joint piece scores best merge, of equal ones the leftmost."""
    symbols: list[str | None] = list(text)
    queue: list[tuple[float, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right < len(symbols) and (joint := f"{symbols[left]}{symbols[right]}") in scores:
            heapq.heappush(queue, (-scores[joint], left, right, joint))

    def neighbour(index: int, step: int) -> int:
        index += step
        while 0 <= index < len(symbols) and symbols[index] is None:
            index += step
        return index

    for index in range(len(symbols) - 1):
        offer(index, index + 1)
    while queue:
        _, left, right, joint = heapq.heappop(queue)
        if symbols[left] is None or symbols[right] is None or f"{symbols[left]}{symbols[right]}" != joint:
            continue
        symbols[left], symbols[right] = joint, None
        offer(neighbour(left, -1), left)
        offer(left, neighbour(left, 1))
    return [symbol for symbol in symbols if symbol is not None]


def test_merges_equal_sentencepieces_rule() -> None:
    rng = random.Random(3)
    for _ in range(40):
        chars = {char: -1000.0 - n for n, char in enumerate("abcd▁")}
        joint = {"".join(rng.choices("abcd▁", k=rng.randint(2, 5))) for _ in range(60)}
        ranks = rng.sample(range(len(joint)), len(joint))
        scores = chars | dict(zip(sorted(joint), map(float, ranks), strict=True))
        tokenizer = Tokenizer.from_metadata(sentencepiece(scores, add_space_prefix=False))
        for _ in range(40):
            text = "".join(rng.choices("abcd ", k=rng.randint(1, 40)))
            assert pieces(tokenizer, text) == spm_reference(text.replace(" ", "▁"), scores)


def test_text_never_merges_into_a_control_token() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece({"<s": -1, "s>": -2, "<": -3, "s": -4, ">": -5, "▁": -6}))
    assert "<s>" not in pieces(tokenizer, "<s>")
    assert pieces(tokenizer, "<s>", special=True) == ["<s>"]


def test_the_files_own_merges_win_over_scores() -> None:
    metadata = sentencepiece({"ab": -1, "bc": -2, "a": -3, "b": -4, "c": -5}, add_space_prefix=False)
    assert pieces(Tokenizer.from_metadata(metadata), "abc") == ["ab", "c"]
    metadata["tokenizer.ggml.merges"] = ["b c", "a b", "b missing"]
    assert pieces(Tokenizer.from_metadata(metadata), "abc") == ["a", "bc"]


def test_the_files_own_merges_make_no_control_token() -> None:
    metadata = sentencepiece({"<s": -1, "<": -2, "s": -3, ">": -4}, add_space_prefix=False)
    metadata["tokenizer.ggml.merges"] = ["< s", "<s >"]
    assert pieces(Tokenizer.from_metadata(metadata), "<s>") == ["<s", ">"]


def test_byte_tokens_typed_as_text_are_read_as_bytes() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece({"▁": -1} | dict.fromkeys(BYTE_TOKENS, -9.0)))
    newline = tokenizer.encode("\n", add_bos=False)[-1]
    assert tokenizer.token_text(newline) == "<0x0A>"
    assert tokenizer.token_bytes(newline) == b"\n"
    assert "256 byte tokens" in tokenizer.notes[0]


def test_a_vocabulary_without_byte_tokens_loads() -> None:
    metadata = sentencepiece({"\n": -1, "▁": -2, "a": -3}, add_space_prefix=False)
    tokenizer = Tokenizer.from_metadata(metadata)
    assert pieces(tokenizer, "a\na") == ["a", "\n", "a"]
    assert pieces(tokenizer, "aéa") == ["a", "<unk>", "a"]


def test_a_character_that_nothing_stands_for_is_named() -> None:
    metadata = sentencepiece({"a": -2}, {"x" * n: NORMAL for n in range(2, 4)}, add_space_prefix=False)
    metadata["tokenizer.ggml.tokens"][0] = ""
    with pytest.raises(UsageError, match="no token for 'é'"):
        Tokenizer.from_metadata(metadata).encode("aé")


def test_an_unknown_character_becomes_its_bytes() -> None:
    tokenizer = Tokenizer.from_metadata(sentencepiece({"▁": -1}, BYTES, add_space_prefix=False))
    assert pieces(tokenizer, "é") == ["<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("é")) == "é"


LEGACY = Tokenizer.from_metadata(sentencepiece(USER, BYTES | {"<X>": CONTROL, "[U]": USER_DEFINED}))
NEVER = Tokenizer.from_metadata(sentencepiece(USER, BYTES, add_space_prefix=False))


# U+2581 is how these vocabularies write a space: the only character that cannot come back.
@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="▁"), max_size=40))
@settings(max_examples=200, deadline=None)
def test_decoding_gives_the_text_back(text: str) -> None:
    assert LEGACY.decode(LEGACY.encode(text)) == text
    assert NEVER.decode(NEVER.encode(text)) == text


@pytest.mark.parametrize("text", ["\u2029", "👨‍👩‍👧‍👦", "\0", " user", "  user ", "[U]user", " [U] [U]user"])
def test_odd_texts_come_back(text: str) -> None:
    assert LEGACY.decode(LEGACY.encode(text)) == text


def test_a_bos_leaves_the_text_behind_it_at_the_start() -> None:
    """Only the very first text gets a space under "first": what decoding takes away must look past the BOS."""
    first = Tokenizer.from_metadata(sentencepiece(USER, BYTES) | {"pearl.tokenizer.space_prefix": "first"})
    assert [first.token_text(i) for i in first.encode("user")] == ["<s>", "▁user"]
    assert first.decode(first.encode("user")) == "user"


def test_a_continuation_keeps_its_leading_space() -> None:
    ids = LEGACY.encode("user", add_bos=False)
    assert LEGACY.decode(ids) == "user"
    assert LEGACY.continuation(ids) == " user"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"tokenizer.ggml.scores": None}, "no scores"), ({"tokenizer.ggml.add_space_prefix": "yes"}, "true or false")],
)
def test_a_broken_table_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GGUFError, match=message):
        Tokenizer.from_metadata(sentencepiece(USER) | change)


def test_a_byte_token_with_another_name_is_refused() -> None:
    with pytest.raises(GGUFError, match="'<0xZZ>' is typed as a byte"):
        Tokenizer.from_metadata(sentencepiece(USER, {"<0xZZ>": BYTE}))


def test_pre_is_for_the_other_kind() -> None:
    with pytest.raises(UsageError, match="--pre is for byte-level BPE"):
        Tokenizer.from_metadata(sentencepiece(USER), pre="qwen2")
