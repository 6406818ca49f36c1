"""`Engine`: prompt in chunks, one token at a time, a sequence that remembers itself. Free of files, printing and
sampling rules.

Opening a model is `pearl_cli.open_engine`; text and templates are above it, residency below.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from models.errors import ContextError, UsageError
from models.expert_provider import ExpertProvider
from models.kv_cache import KVCache
from models.model import Model
from pearl_cli.residency.call_work import CallCancelled
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.stats import TokenStats

Cancelled = Callable[[], bool]


class SamplerLike(Protocol):
    """What is needed of `pearl_cli.sampling.Sampler`."""

    def sample(self, logits: np.ndarray, recent: Sequence[int]) -> int: ...
    def accept(self, token_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One token: `elapsed_ms` from the one before it (the first: from the end of the prompt) and what its forward call
    did.

    The last token of a generation costs no forward call: its stats are empty.
    """

    token_id: int
    elapsed_ms: float
    stats: TokenStats


class Generation:
    """An iterator of `Step`. finish_reason, when it has ended: "stop" (a stop id, which is not yielded), "length" or
    "cancelled"; context_full tells a "length" for which the context was too short, not `max_tokens`.

    reused_tokens of the prompt were still in the cache; prompt_ms and prompt_stats cover the others. repeated_tokens of
    those had been computed before, but the model's state could not go back to behind them.
    """

    def __init__(self, steps: Callable[[Generation], Iterator[Step]]) -> None:
        self.finish_reason = ""
        self.context_full = False
        self.stop_id: int | None = None
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.repeated_tokens = 0
        self.prompt_ms = 0.0
        self.prompt_stats = TokenStats()
        self._steps = steps(self)

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def __next__(self) -> Step:
        return next(self._steps)


class Engine:
    """One sequence on one model. `tokens` are the ids whose keys and values are in `cache`. Not thread-safe."""

    def __init__(self, model: Model, cache: KVCache, provider: ExpertProvider, chunk_tokens: int = 512) -> None:
        if chunk_tokens < 1:
            raise ValueError(f"a prompt chunk of {chunk_tokens} tokens")
        self.model = model
        self.cache = cache
        self.provider = provider
        self.tokens: list[int] = []
        self.chunk_tokens = chunk_tokens

    @property
    def context(self) -> int:
        """Tokens that fit."""
        return self.cache.capacity

    def reset(self) -> None:
        """Forget the sequence; resident experts stay."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        self.cache.truncate(length)
        del self.tokens[length:]

    def prefill(
        self,
        token_ids: Sequence[int],
        progress: Callable[[int, int], None] | None = None,
        cancelled: Cancelled | None = None,
        keep_at: int = 0,
    ) -> np.ndarray:
        """Make the sequence equal to `token_ids` and return float32 logits [V] of the next token.

        The longest common prefix with what is there is reused, but the last token is always computed. progress(done,
        total) counts tokens of the new part, those of a chunk by its layers. keep_at: prompt tokens that a later prompt
        will begin with too; a model with recurrent states remembers them there. Raises UsageError when the prompt is
        empty or too long, CallCancelled between layers; the tokens done stay.
        """
        if not token_ids:
            raise UsageError("the prompt holds no token; give some text")
        if len(token_ids) > self.context:
            fault = f"the prompt of {len(token_ids)} tokens does not fit the context of {self.context}"
            trained = self.model.config.context_length
            more = f" or give a larger -c (up to {trained})" if self.context < trained else ""
            raise ContextError(f"{fault}; shorten it{more}")
        start = self._reusable(token_ids)
        self.truncate(start)
        total = len(token_ids) - start
        logits: np.ndarray | None = None
        for first, stop in self._chunks(start, len(token_ids), keep_at):
            wanted = "last" if stop == len(token_ids) else "none"
            after_layer = self._by_layer(progress, first - start, stop - first, total) if progress is not None else None
            logits = self._forward(token_ids[first:stop], "prefill", wanted, cancelled, after_layer)
            if stop == keep_at:
                self.cache.keep()
            if progress is not None:
                progress(stop - start, total)
        if logits is None:
            raise ValueError("the model gave no logits")
        return logits

    def decode_step(self, token_id: int, cancelled: Cancelled | None = None) -> np.ndarray:
        """Append one token; float32 logits [V] of the next. Raises ValueError when the context is full, CallCancelled.
        """
        logits = self._forward([token_id], "decode", "last", cancelled)
        if logits is None:
            raise ValueError("the model gave no logits")
        return logits

    def generate(
        self,
        prompt_ids: Sequence[int],
        sampler: SamplerLike,
        max_tokens: int = -1,
        stop_ids: AbstractSet[int] = frozenset(),
        progress: Callable[[int, int], None] | None = None,
        cancelled: Cancelled | None = None,
        keep_at: int = 0,
    ) -> Generation:
        """Continue `prompt_ids`: at most `max_tokens` (-1: until a stop id or the end of the context). Nothing runs
        before the first step is asked for. `cancelled` is polled between tokens and layers and ends the generation;
        keep_at: see `prefill`."""

        def prefill(generation: Generation) -> np.ndarray:
            return self._timed_prefill(generation, prompt_ids, progress, cancelled, keep_at)

        return Generation(
            lambda generation: self._steps(generation, prefill, sampler, max_tokens, stop_ids, cancelled)
        )

    def _steps(
        self,
        generation: Generation,
        prefill: Callable[[Generation], np.ndarray],
        sampler: SamplerLike,
        max_tokens: int,
        stop_ids: AbstractSet[int],
        cancelled: Cancelled | None,
    ) -> Iterator[Step]:
        try:
            logits = prefill(generation)
            n_done, stats, since = 0, TokenStats(), time.perf_counter()
            while n_done != max_tokens:
                token_id = sampler.sample(logits, self.tokens)
                if token_id in stop_ids:
                    generation.finish_reason, generation.stop_id = "stop", token_id
                    return
                sampler.accept(token_id)
                moment = time.perf_counter()
                yield Step(token_id, (moment - since) * 1e3, stats)
                n_done += 1
                generation.context_full = n_done != max_tokens and len(self.tokens) >= self.context
                if n_done == max_tokens or generation.context_full:
                    break
                if cancelled is not None and cancelled():
                    raise CallCancelled
                since = time.perf_counter()
                logits = self.decode_step(token_id, cancelled)
                stats = self._last_stats()
            generation.finish_reason = "length"
        except CallCancelled:
            generation.finish_reason = "cancelled"

    def _timed_prefill(
        self,
        generation: Generation,
        prompt_ids: Sequence[int],
        progress: Callable[[int, int], None] | None,
        cancelled: Cancelled | None,
        keep_at: int,
    ) -> np.ndarray:
        generation.prompt_tokens = len(prompt_ids)
        shared = self._shared(prompt_ids)
        generation.reused_tokens = self.cache.rewindable(shared)
        generation.repeated_tokens = shared - generation.reused_tokens
        before, started = self._totals(), time.perf_counter()
        logits = self.prefill(prompt_ids, progress, cancelled, keep_at)
        generation.prompt_ms = (time.perf_counter() - started) * 1e3
        generation.prompt_stats = self._totals() - before
        return logits

    def _by_layer(
        self, progress: Callable[[int, int], None], done: int, n_tokens: int, total: int
    ) -> Callable[[int], None]:
        """Reports that part of a chunk's tokens that is the part of the layers they have been through. Where experts
        are read from a disk one chunk may take minutes.
        """
        num_layers = len(self.model.blk)

        def after_layer(n_layers: int) -> None:
            if n_layers < num_layers:
                progress(done + n_tokens * n_layers // num_layers, total)

        return after_layer

    def _forward(
        self,
        token_ids: Sequence[int],
        phase: str,
        logits: str,
        cancelled: Cancelled | None,
        after_layer: Callable[[int], None] | None = None,
    ) -> np.ndarray | None:
        if isinstance(self.provider, ResidencyController):
            self.provider.cancelled = cancelled
        ids = np.array(token_ids, np.int64)
        result = self.model.forward(ids, self.cache, self.provider, phase, logits, after_layer)
        self.tokens += token_ids
        return result

    def _reusable(self, token_ids: Sequence[int]) -> int:
        """Leading tokens of `token_ids` that need no computing."""
        return self.cache.rewindable(self._shared(token_ids))

    def _shared(self, token_ids: Sequence[int]) -> int:
        """Leading tokens of `token_ids` that have been computed, less the last one: that gives the logits."""
        return min(self._common_prefix(token_ids), max(0, len(token_ids) - 1))

    def _chunks(self, start: int, end: int, keep_at: int) -> Iterator[tuple[int, int]]:
        """Spans of start..end that are computed at once; one ends at `keep_at` where the model has states to keep."""
        while start < end:
            stop = min(start + self.chunk_tokens, end)
            if self.cache.has_states and start < keep_at < stop:
                stop = keep_at
            yield start, stop
            start = stop

    def _common_prefix(self, token_ids: Sequence[int]) -> int:
        length = 0
        for mine, other in zip(self.tokens, token_ids, strict=False):
            if mine != other:
                break
            length += 1
        return length

    def _totals(self) -> TokenStats:
        return self.provider.totals if isinstance(self.provider, ResidencyController) else TokenStats()

    def _last_stats(self) -> TokenStats:
        return self.provider.last_call if isinstance(self.provider, ResidencyController) else TokenStats()
