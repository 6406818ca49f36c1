"""Replies in channels: thoughts go to stderr, the answer to stdout and into the next prompt."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from models.chat_template import ChatTemplate
from models.tokenizer import Tokenizer
from pearl_cli.chat import Chat
from pearl_cli.engine import Generation, Step
from pearl_cli.reply_channels import ANSWER, MARK, THOUGHT, ReplyChannels
from pearl_cli.residency.stats import TokenStats
from pearl_cli.routing.settings import RoutingSettings
from pearl_cli.sampling import SamplingParams
from pearl_cli.terminal import Terminal
from tests.tiny_vocab import CONTROL, byte_level

MARKS = ["<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|return|>"]
VOCABULARY = byte_level("gpt-2", extra=dict.fromkeys(MARKS, CONTROL))
TOKENIZER = Tokenizer.from_metadata(VOCABULARY)
TEMPLATE = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
THOUGHTS = "<|channel|>analysis<|message|>hm, greet<|end|><|start|>assistant"


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_bos=False, special=True)


def parts(text: str) -> dict[str, str]:
    channels = ReplyChannels.of(TOKENIZER)
    assert channels is not None
    places = [(channels.push(token_id), token_id) for token_id in ids(text)]
    return {kind: TOKENIZER.continuation([i for p, i in places if p == kind]) for kind in (ANSWER, THOUGHT, MARK)}


@pytest.mark.parametrize(
    ("text", "answer", "thought"),
    [
        (THOUGHTS + "<|channel|>final<|message|>Hello.", "Hello.", "hm, greet"),
        ("<|channel|>final<|message|>Hello.", "Hello.", ""),
        ("Hello.", "Hello.", ""),
        ("<|message|>Hello.", "Hello.", ""),
        ("<|channel|>commentary to=functions.f json<|message|>{}<|end|>", "", "{}"),
        ("<|channel|>final json<|message|>{}", "{}", ""),
        (THOUGHTS + "<|channel|>comm", "", "hm, greet"),
        (THOUGHTS + "<|message|>Hello.", "Hello.", "hm, greet"),
    ],
)
def test_tokens_are_sorted_by_channel(text: str, answer: str, thought: str) -> None:
    found = parts(text)
    assert (found[ANSWER], found[THOUGHT]) == (answer, thought)


def test_other_vocabularies_have_no_channels() -> None:
    assert ReplyChannels.of(Tokenizer.from_metadata(byte_level("gpt-2"))) is None


class Scripted:
    """An engine that says what it is told; remembers the prompts."""

    cache = SimpleNamespace(has_states=False)
    chunk_tokens, context = 512, 4096

    def __init__(self, *replies: str) -> None:
        self.replies, self.prompts = list(replies), []

    def generate(self, prompt_ids: list[int], *_: Any) -> Generation:
        self.prompts.append("".join(TOKENIZER.token_text(i) for i in prompt_ids))

        def steps(generation: Generation) -> Iterator[Step]:
            yield from (Step(token_id, 1.0, TokenStats()) for token_id in ids(self.replies.pop(0)))
            generation.finish_reason = "stop"

        return Generation(steps)


def chat_of(engine: Scripted) -> tuple[Chat, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    session: Any = SimpleNamespace(
        engine=engine, tokenizer=TOKENIZER, terminal=Terminal("off", out, err),
        opened=SimpleNamespace(routing=RoutingSettings(), config=SimpleNamespace(vocab_size=TOKENIZER.vocab_size)),
    )  # fmt: skip
    template = ChatTemplate.from_metadata(VOCABULARY, TOKENIZER, TEMPLATE)
    return Chat(session, template, SamplingParams(), stop_strings=["hm"]), out, err


def test_only_the_answer_is_printed_and_remembered() -> None:
    engine = Scripted(THOUGHTS + "<|channel|>final<|message|>Hello.", "<|channel|>final<|message|>Bye.")
    chat, out, err = chat_of(engine)
    chat.reply("Hi")
    assert (out.getvalue(), err.getvalue()) == ("Hello.\n", "hm, greet\n")  # stop strings are for the answer
    chat.reply("So")
    assert engine.prompts[1] == (
        "<|start|>user<|message|>Hi<|end|><|start|>assistant<|message|>Hello.<|end|>"
        "<|start|>user<|message|>So<|end|><|start|>assistant"
    )
    assert out.getvalue() == "Hello.\nBye.\n"


def test_a_reply_of_thoughts_alone_is_said_to_be_one() -> None:
    chat, out, err = chat_of(Scripted("<|channel|>analysis<|message|>let me see"))
    chat.reply("Hi")
    assert out.getvalue() == "\n"
    assert err.getvalue().startswith("let me see\n")
    assert "before its answer began" in err.getvalue()
    assert chat.conversation.turns == []
