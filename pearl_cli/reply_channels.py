"""Replies in channels, as gpt-oss gives them: which tokens are thoughts, which are the answer, and which only mark
where either begins.

A reply is one message or more:
    <|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..
What is not in the channel `final` is for the model itself, and belongs neither into the answer nor into the turns that
the next prompt repeats.
"""

from __future__ import annotations

from models.tokenizer import Tokenizer

ANSWER, THOUGHT, MARK = "answer", "thought", "mark"
_MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")
_ANSWERS = "final"


class ReplyChannels:
    """Follows one reply token by token. A reply that names no channel is an answer from its first token on."""

    def __init__(self, tokenizer: Tokenizer, marks: dict[str, int]) -> None:
        self._tokenizer = tokenizer
        self._channel, self._message, self._start, self._end = (marks[mark] for mark in _MARKS)
        self._place = ANSWER
        self._name: list[int] | None = None  # of the channel, while it is being spelt

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ReplyChannels | None:
        """For a vocabulary that has the marks, else None."""
        found = {mark: tokenizer.special_id(mark) for mark in _MARKS}
        marks = {mark: token_id for mark, token_id in found.items() if token_id is not None}
        return cls(tokenizer, marks) if len(marks) == len(_MARKS) else None

    def push(self, token_id: int) -> str:
        """Where the next token belongs: ANSWER, THOUGHT or MARK."""
        if token_id == self._channel:
            self._place, self._name = MARK, []
        elif token_id in (self._start, self._end):
            self._place, self._name = MARK, None
        elif token_id == self._message:
            name = self._tokenizer.continuation(self._name or []).split()
            self._place = THOUGHT if name and name[0] != _ANSWERS else ANSWER
            return MARK
        elif self._place == MARK and self._name is not None:
            self._name.append(token_id)
        return self._place
