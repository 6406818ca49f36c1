"""Choosing the next token from logits: llama.cpp's chain and defaults, in numpy.

Order: logit bias, penalties, top-k, top-p, min-p, temperature, draw. Temperature 0 takes the largest logit after the
penalties. The same seed, parameters and logits give the same tokens.
"""

from __future__ import annotations

import dataclasses
import secrets
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from models.errors import PearlError, UsageError
from pearl_cli.top_k import TopK

RANDOM_SEED = -1
REPEAT_PENALTIES = (1e-6, 1e6)  # beyond these a logit could overflow
MOST_PENALTY = 1e6


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """llama.cpp's defaults. `top_k` 0, `top_p` 1, `min_p` 0, `repeat_penalty` 1 and the other penalties 0 switch off.

    `repeat_last_n`: how many of the last tokens, prompt included, are penalised (0 none, -1 all).
    `seed` -1: one is drawn. `logit_bias`: (token id, amount added) pairs; -inf forbids a token.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = RANDOM_SEED
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """UsageError names the option that is out of range."""
        limits = {
            "--temp": self.temperature >= 0,
            "--top-p": 0 <= self.top_p <= 1,
            "--min-p": 0 <= self.min_p <= 1,
            "--repeat-penalty": REPEAT_PENALTIES[0] <= self.repeat_penalty <= REPEAT_PENALTIES[1],
            "--repeat-last-n": self.repeat_last_n >= -1,
            "--presence-penalty": abs(self.presence_penalty) <= MOST_PENALTY,
            "--frequency-penalty": abs(self.frequency_penalty) <= MOST_PENALTY,
            "--seed": self.seed >= RANDOM_SEED,
        }
        for option, holds in limits.items():
            if not holds:
                raise UsageError(f"{option} is out of range; see --help for what it takes")


def with_drawn_seed(params: SamplingParams) -> SamplingParams:
    """`params` with a random seed drawn where none was given, so that it can be shown and used again."""
    return dataclasses.replace(params, seed=secrets.randbits(32)) if params.seed == RANDOM_SEED else params


def forbid(token_ids: Iterable[int]) -> tuple[tuple[int, float], ...]:
    """A `logit_bias` under which none of `token_ids` can be chosen (what --ignore-eos does with the stop ids)."""
    return tuple((token_id, -np.inf) for token_id in sorted(token_ids))


class Sampler:
    """Draws tokens for one sequence. `seed` is the one in use, to be shown to the user."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self.seed = with_drawn_seed(params).seed
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._top_k = TopK(vocab_size)
        self._flags = np.empty(vocab_size, bool)
        self._changed = np.empty(vocab_size, np.float32)
        bound = None if params.repeat_last_n < 0 else min(params.repeat_last_n, sys.maxsize)
        self._accepted: deque[int] = deque(maxlen=bound)
        self._bias_ids = np.array([i for i, _ in params.logit_bias], dtype=np.int64)
        self._bias = np.array([amount for _, amount in params.logit_bias], dtype=np.float32)
        if self._bias_ids.size and not 0 <= self._bias_ids.min() <= self._bias_ids.max() < vocab_size:
            raise UsageError(f"a logit bias names a token outside the vocabulary of {vocab_size}")
        if np.unique(self._bias_ids[np.isneginf(self._bias)]).size == vocab_size:
            raise UsageError("the logit bias forbids every token")

    def accept(self, token_id: int) -> None:
        """Tell the sampler a token of the sequence, prompt or generated; penalties look at the last ones."""
        self._accepted.append(token_id)

    def sample(self, logits: np.ndarray, recent: Sequence[int] | None = None) -> int:
        """The next token id. `logits` float32 [V] are not changed.

        `recent`: the tokens so far, of which the last `repeat_last_n` are penalised; None takes the accepted ones.
        PearlError when a logit is NaN or infinite: the model is broken, and no choice from it would mean anything.
        """
        logits = self._adjusted(logits, self._window(recent))
        if self.params.temperature == 0:
            return int(np.argmax(logits))
        ids = self._top_k.ids(logits, self.params.top_k)
        kept = logits[ids].astype(np.float64)
        probabilities = np.exp(kept - kept[0])
        if self.params.top_p < 1:
            cumulative = np.cumsum(probabilities)
            n_kept = int(np.searchsorted(cumulative, self.params.top_p * cumulative[-1])) + 1
            kept, probabilities = kept[:n_kept], probabilities[:n_kept]
        kept = kept[probabilities >= self.params.min_p * probabilities[0]]
        weights = np.exp((kept - kept[0]) / self.params.temperature)
        cumulative = np.cumsum(weights)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(drawn), kept.size - 1)])

    def _window(self, recent: Sequence[int] | None) -> list[int]:
        last_n = self.params.repeat_last_n
        tokens: Sequence[int] = self._accepted if recent is None else recent
        start = 0 if last_n < 0 else max(len(tokens) - last_n, 0)
        return list(islice(tokens, start, None))

    def _adjusted(self, logits: np.ndarray, window: list[int]) -> np.ndarray:
        """With bias and penalties, in memory of the sampler's own; `logits` itself where there are none."""
        if logits.shape != (self.vocab_size,):
            raise ValueError(f"logits have shape {logits.shape}, expected ({self.vocab_size},)")
        if not np.isfinite(logits, out=self._flags).all():
            token_id = int(np.flatnonzero(~np.isfinite(logits))[0])
            raise PearlError(
                f"the last layer produced {logits[token_id]} as the logit of token {token_id}: weights or activations "
                "overflow; check the file (pearl info) or convert it again with a wider type (bf16, f32)"
            )
        params = self.params
        penalises = (params.repeat_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)
        if not self._bias_ids.size and not (penalises and window):
            return logits
        self._changed[:] = logits
        logits = self._changed
        np.add.at(logits, self._bias_ids, self._bias)
        if penalises and window:
            penalise(logits, window, params)
        return logits


def penalise(logits: np.ndarray, window: Sequence[int], params: SamplingParams) -> None:
    """Lower in place the logits of the tokens in `window`, each once, however often it occurs.

    The repeat penalty (Keskar et al. 2019, sign-aware) divides positive logits and multiplies negative ones; the
    frequency penalty counts occurrences, the presence penalty does not.
    """
    ids, counts = np.unique(np.asarray(window, dtype=np.int64), return_counts=True)
    found = logits[ids]
    found = np.where(found > 0, found / np.float32(params.repeat_penalty), found * np.float32(params.repeat_penalty))
    logits[ids] = found - (counts * params.frequency_penalty + params.presence_penalty).astype(np.float32)
