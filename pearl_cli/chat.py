"""One reply of a chat: template, generation, streamed text, and a conversation that stays consistent however it
ends.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.chat_template import ChatTemplate
from pearl_cli.conversation import Conversation
from pearl_cli.engine import Generation
from pearl_cli.interrupt import Interrupt
from pearl_cli.prompt_advice import chunk_advice, context_advice
from pearl_cli.reply_channels import ANSWER, THOUGHT, ReplyChannels
from pearl_cli.residency.stats import TokenStats
from pearl_cli.routing.mark import steered_mark
from pearl_cli.sampling import Sampler, SamplingParams, with_drawn_seed
from pearl_cli.session import Session
from pearl_cli.terminal import Progress
from pearl_cli.text_stream import TextStream

_REPEATS_WORTH_SAYING = 32  # tokens; fewer are done before the line is read


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """What the last reply took. `decode` sums over its generated tokens, without the prompt."""

    finish_reason: str
    prompt_tokens: int
    reused_tokens: int
    repeated_tokens: int
    prompt_ms: float
    tokens: int
    decode_ms: float
    decode: TokenStats

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tokens / self.decode_ms if self.decode_ms else 0.0

    def line(self) -> str:
        """One line for a person."""
        if self.finish_reason == "cancelled" and not self.tokens:
            return "[ stopped before the first token ]"
        new = self.prompt_tokens - self.reused_tokens
        stall = self.decode.stall_ms / max(self.tokens, 1)
        again = f" ({self.repeated_tokens} of them again)" if self.repeated_tokens else ""
        return (
            f"[ prompt {new} tokens{again} in {self.prompt_ms / 1e3:.2f} s | {self.tokens} tokens at "
            f"{self.tokens_per_second:.1f} t/s | experts in memory {100 * self.decode.hit_rate:.0f} % | "
            f"waited {stall:.1f} ms a token ]"
        )


class Thoughts:
    """The part of one reply that is not its answer, shown apart from it; nothing where the model has no channels."""

    def __init__(self, session: Session) -> None:
        self._terminal = session.terminal
        self._channels = ReplyChannels.of(session.tokenizer)
        self._stream = TextStream(session.tokenizer)
        self._is_open = False

    def takes(self, token_id: int) -> bool:
        """Whether the token is none of the answer's; it has been shown then, if there was something to show."""
        place = ANSWER if self._channels is None else self._channels.push(token_id)
        if place == THOUGHT:
            self._is_open = True
            self._terminal.thought(self._stream.push(token_id))
        elif place == ANSWER:
            self._close()
        return place != ANSWER

    def finish(self, reply: str) -> None:
        """At the end of the reply, whose answer is `reply`."""
        thought = self._is_open
        self._close()
        if thought and not reply:
            self._terminal.note("the reply ended before its answer began; a larger -n gives it more tokens")

    def _close(self) -> None:
        if self._is_open:
            self._terminal.thought(self._stream.finish() + "\n")
            self._is_open = False


class Chat:
    """Turns of one conversation on an open model. Commands change `params` and `conversation` directly."""

    def __init__(
        self,
        session: Session,
        template: ChatTemplate,
        params: SamplingParams,
        max_tokens: int = -1,
        stop_strings: Sequence[str] = (),
        template_variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.session = session
        self.params = with_drawn_seed(params)
        self.conversation = Conversation()
        self.last: ReplyStats | None = None
        self._template = template
        self._max_tokens = max_tokens
        self._stop_strings = list(stop_strings)
        self._template_variables = dict(template_variables or {})
        self._warned = False
        self._said_repeats = False
        self._said_advice = False
        self._marked: str | None = None
        self._replies = 0

    def reply(self, text: str) -> ReplyStats:
        """Answer `text`, streaming to the terminal. On an error before the first token the turn is taken back."""
        self.conversation.ask(text)
        return self._answer()

    def regenerate(self) -> ReplyStats | None:
        """Answer the last question again with fresh randomness; None when there is no reply to replace."""
        return self._answer() if self.conversation.take_back_reply() else None

    def _answer(self) -> ReplyStats:
        reply = ""
        try:
            prompt_ids, settled = self._prompt_ids()
            stream = TextStream(self.session.tokenizer, self._stop_strings)
            thoughts = Thoughts(self.session)
            with Interrupt() as interrupt:
                generation = self.session.engine.generate(
                    prompt_ids,
                    self._sampler(),
                    self._max_tokens,
                    self.session.tokenizer.stop_ids,
                    Progress(self.session.terminal, "reading the prompt", min_seconds=1.0),
                    interrupt.is_set,
                    settled,
                )
                started, count, decode = time.perf_counter(), 0, TokenStats()
                for step in generation:
                    count, decode = count + 1, decode + step.stats
                    if not thoughts.takes(step.token_id):
                        reply += self._show(stream.push(step.token_id))
                    if stream.stopped:
                        break
            thoughts.finish(reply)
            reply += self._show(stream.finish())
            self.session.terminal.newline()
        finally:
            self.conversation.answer(reply)
        elapsed_ms = (time.perf_counter() - started) * 1e3 - generation.prompt_ms
        self._mark()
        self._say_repeats(generation.repeated_tokens)
        self._say_advice(generation)
        self.last = _stats(generation, stream.stopped, count, elapsed_ms, decode)
        return self.last

    def _mark(self) -> None:
        """Say once a setting that replies under it are not the model's exact ones."""
        mark = steered_mark(self.session.opened.routing)
        if mark is not None and mark != self._marked:
            self.session.terminal.note(mark)
        self._marked = mark

    def _say_repeats(self, n_tokens: int) -> None:
        """Say once why the prompt takes longer than its new part."""
        if n_tokens >= _REPEATS_WORTH_SAYING and not self._said_repeats:
            self.session.terminal.note(
                f"{n_tokens} tokens of the conversation were computed again: this model's memory of it cannot go back "
                "to where the new prompt departs from the old one"
            )
            self._said_repeats = True

    def _say_advice(self, generation: Generation) -> None:
        """Say that the context was too short, each time; and once how a long prompt would have waited less."""
        engine = self.session.engine
        cut = context_advice(generation, engine.context)
        if cut is not None:
            self.session.terminal.warn(f"{cut}, and /clear forgets the conversation")
        advice = chunk_advice(generation, self.session.opened.config, engine.chunk_tokens, engine.context)
        if advice is not None and not self._said_advice:
            self.session.terminal.note(advice)
            self._said_advice = True

    def _show(self, text: str) -> str:
        self.session.terminal.reply(text)
        return text

    def _prompt_ids(self) -> tuple[list[int], int]:
        """The prompt, and how many of its tokens the next one will begin with whatever the reply is."""
        messages, warning = self._template.prepare(self.conversation.messages())
        if warning and not self._warned:
            self.session.terminal.warn(warning)
            self._warned = True
        tokenizer, variables = self.session.tokenizer, self._template_variables
        ids = self._template.encode(tokenizer, messages, **variables)
        if not self.session.engine.cache.has_states:
            return ids, 0
        settled = self._template.encode(tokenizer, messages, add_generation_prompt=False, **variables)
        differs = (i for i, pair in enumerate(zip(ids, settled, strict=False)) if pair[0] != pair[1])
        return ids, next(differs, min(len(ids), len(settled)))

    def _sampler(self) -> Sampler:
        """A sampler for one reply. A fixed seed gives one conversation, yet each reply its own stream."""
        params = with_drawn_seed(self.params)
        params = dataclasses.replace(params, seed=(params.seed + self._replies) % 2**32)
        self._replies += 1
        return Sampler(params, self.session.opened.config.vocab_size)


def _stats(generation: Generation, stopped: bool, count: int, elapsed_ms: float, decode: TokenStats) -> ReplyStats:
    return ReplyStats(
        finish_reason="stop" if stopped else generation.finish_reason,
        prompt_tokens=generation.prompt_tokens,
        reused_tokens=generation.reused_tokens,
        repeated_tokens=generation.repeated_tokens,
        prompt_ms=generation.prompt_ms,
        tokens=count,
        decode_ms=elapsed_ms,
        decode=decode,
    )
