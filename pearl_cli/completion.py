"""A raw continuation of a text: the work behind `pearl complete`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pearl_cli.interrupt import Interrupt
from pearl_cli.prompt_advice import chunk_advice, context_advice
from pearl_cli.residency.stats import TokenStats
from pearl_cli.sampling import Sampler, SamplingParams, forbid
from pearl_cli.session import Session
from pearl_cli.terminal import Progress
from pearl_cli.text_stream import TextStream


@dataclass(frozen=True, slots=True)
class Completion:
    """finish_reason: "stop" (end of text or a stop string), "length", "cancelled".

    `decode` sums over generated tokens; `notes` are lines to tell the user after the text.
    """

    prompt_ids: list[int]
    ids: list[int]
    text: str
    finish_reason: str
    seed: int
    prompt_ms: float
    decode_ms: float
    decode: TokenStats
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """The JSON object of `pearl complete --json`; timings under llama-server's names, residency beside them."""
        n_prompt, n_new = len(self.prompt_ids), len(self.ids)
        return {
            "prompt_ids": self.prompt_ids,
            "ids": self.ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            "timings": {
                "prompt_n": n_prompt,
                "prompt_ms": self.prompt_ms,
                "prompt_per_second": _rate(n_prompt, self.prompt_ms),
                "predicted_n": n_new,
                "predicted_ms": self.decode_ms,
                "predicted_per_second": _rate(n_new, self.decode_ms),
                "hit_rate": self.decode.hit_rate,
                "miss_bytes": self.decode.miss_bytes,
                "prefetch_bytes": self.decode.prefetch_bytes,
                "stall_ms": self.decode.stall_ms,
            },
        }


def complete(
    session: Session,
    text: str,
    sampling: SamplingParams,
    max_tokens: int,
    special: bool = False,
    ignore_eos: bool = False,
    stop_strings: Sequence[str] = (),
    show: Callable[[str], None] | None = None,
) -> Completion:
    """Continue `text`; every piece that is safe to show is handed to `show`. Ctrl-C ends it with what is there."""
    tokenizer = session.tokenizer
    if ignore_eos:
        sampling = dataclasses.replace(sampling, logit_bias=forbid(tokenizer.stop_ids))
    sampler = Sampler(sampling, session.opened.config.vocab_size)
    prompt_ids = tokenizer.encode_prompt(text, special=special)
    stream = TextStream(tokenizer, list(stop_strings))
    ids: list[int] = []
    shown: list[str] = []
    decode = TokenStats()

    def out(piece: str) -> None:
        shown.append(piece)
        if show is not None:
            show(piece)

    with Interrupt() as interrupt:
        progress = Progress(session.terminal, "reading the prompt", min_seconds=1.0)
        generation = session.engine.generate(
            prompt_ids, sampler, max_tokens, tokenizer.stop_ids, progress, interrupt.is_set
        )
        started = time.perf_counter()
        for step in generation:
            ids.append(step.token_id)
            decode += step.stats
            out(stream.push(step.token_id))
            if stream.stopped:
                break
    out(stream.finish())
    engine = session.engine
    advice = (
        chunk_advice(generation, session.opened.config, engine.chunk_tokens, engine.context),
        context_advice(generation, engine.context),
    )
    notes = tuple(line for line in advice if line is not None)
    elapsed_ms = (time.perf_counter() - started) * 1e3 - generation.prompt_ms
    reason = "stop" if stream.stopped else generation.finish_reason
    return Completion(
        prompt_ids, ids, "".join(shown), reason, sampler.seed, generation.prompt_ms, elapsed_ms, decode, notes
    )


def _rate(count: int, elapsed_ms: float) -> float:
    return 1e3 * count / elapsed_ms if elapsed_ms > 0 else 0.0
