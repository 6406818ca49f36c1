"""What may be shown of a reply, and when: whole characters, no control tokens, no part of a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tokenizer import Tokenizer
from pearl_cli.text_stream import TextStream
from tests.tiny_vocab import CONTROL, NORMAL, byte_level

PIECES = ["The quick br", "own", " fox", " x", "?\n", "DEF", "HI", "no", "w"]
GPT2_SPACE, GPT2_NEWLINE = "Ġ", "Ċ"


def vocabulary() -> Tokenizer:
    extra = {piece.replace(" ", GPT2_SPACE).replace("\n", GPT2_NEWLINE): NORMAL for piece in PIECES if len(piece) > 1}
    return Tokenizer.from_metadata(byte_level("gpt-2", (), extra | {"<|eot|>": CONTROL}, eot_token_id=256 + len(extra)))


TOKENIZER = vocabulary()
IDS = {TOKENIZER.token_bytes(i): i for i in range(TOKENIZER.vocab_size)}


def stream(pieces: list[str | bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """What each piece released, the flush at the end last."""
    out = TextStream(TOKENIZER, stops)
    shown = [out.push(IDS[piece.encode() if isinstance(piece, str) else piece]) for piece in pieces]
    return [*shown, out.finish()], out


def test_a_character_over_four_tokens_appears_whole() -> None:
    assert stream([b"\xf0", b"\x9f", b"\x91", b"\x8d"])[0] == ["", "", "", "👍", ""]


def test_an_unfinished_character_is_flushed_at_the_end() -> None:
    assert stream([b"\xf0", b"\x9f"])[0] == ["", "", "\ufffd"]


def test_a_bad_byte_does_not_hold_back_good_text() -> None:
    assert stream(["A", b"\xf0", "B"])[0] == ["A", "", "\ufffdB", ""]


def test_control_tokens_show_nothing() -> None:
    shown, out = stream(["A", "<|eot|>", "B"])
    assert shown == ["A", "", "B", ""]
    assert out.text == "AB"
    assert IDS[b"<|eot|>"] in TOKENIZER.stop_ids


@pytest.mark.parametrize(
    ("stop", "pieces", "shown"),
    [
        ("own fox", ["The quick br", "own", " fox", " x"], "The quick br"),
        ("\n", ["?\n"], "?"),
        ("DEFGHIJ", ["DEF", "G", "HI", "J"], ""),
        ("👍", ["A", b"\xf0", b"\x9f", b"\x91", b"\x8d", "B"], "A"),
    ],
)
def test_a_stop_string_is_never_shown(stop: str, pieces: list[str | bytes], shown: str) -> None:
    released, out = stream(pieces, (stop,))
    assert "".join(released) == out.text == shown
    assert out.stopped


def test_only_a_possible_beginning_is_held_back() -> None:
    released, out = stream(["no", "own", " x", "own"], ("own fox",))
    assert released == ["no"[:-1], "o", "own x", "", "own"]
    assert not out.stopped


def test_the_held_text_comes_at_the_end() -> None:
    assert stream(["DEF", "G"], ("DEFGHIJ",))[0] == ["", "", "DEFG"]


def test_of_several_stop_strings_the_earliest_counts() -> None:
    assert stream(["The quick br"], ("br", "quick", "k b"))[1].text == "The "


def test_a_stop_string_inside_another_ones_beginning() -> None:
    """"ab" is complete although "xabcd" might still come."""
    released, out = stream(list("xab"), ("xabcd", "ab"))
    assert ("".join(released), out.stopped) == ("x", True)


def test_nothing_follows_a_stop() -> None:
    released, out = stream(["?\n", "own", "A"], ("\n",))
    assert released == ["?", "", "", ""]
    assert out.finish() == ""


def test_a_stop_string_can_end_in_an_unfinished_character() -> None:
    assert stream(["A", b"\xf0"], ("\ufffd",))[1].text == "A"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        TextStream(TOKENIZER, ("",))


@given(st.text("abc👍é", max_size=30), st.lists(st.text("abcé", min_size=1, max_size=4), max_size=3))
def test_any_cutting_shows_the_text_before_the_first_stop(text: str, stops: list[str]) -> None:
    """Fed byte by byte, the first stop string to be complete ends the text, from where it begins."""
    raw = [bytes([byte]) for byte in text.encode()]
    out = stream(list(raw), tuple(stops))[1]
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    shown = text
    if ends:
        head = text[: min(ends)]
        shown = head[: min(at for stop in stops if (at := head.find(stop)) >= 0)]
    assert out.text == shown
    assert out.stopped == bool(ends)
