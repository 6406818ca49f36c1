"""What every domain of the demo corpus hands out: one exchange, and the split into training and held-out problems."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

HELD_OUT_SHARE = 12  # one problem in this many never occurs in training


@dataclass(frozen=True, slots=True)
class Exchange:
    """One user turn and its answer.

    `key` names the problem (not its wording) and decides the split. `expect` is what a checker compares: the final
    number, the looked-up value, the asserts of a function, or every accepted reply joined by newlines.
    `follow_ups` are further turns that only make sense directly after this one.
    """

    domain: str
    key: str
    user: str
    assistant: str
    expect: str
    follow_ups: tuple[tuple[str, str, str], ...] = ()


def is_held_out(key: str) -> bool:
    """True for the fixed share of problems that are kept out of training."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % HELD_OUT_SHARE == 0


def draw(make: Callable[[Random], Exchange], rng: Random, held_out: bool) -> Exchange:
    """Draw exchanges from `make` until one lies on the asked side of the split."""
    while True:
        exchange = make(rng)
        if is_held_out(exchange.domain + "|" + exchange.key) == held_out:
            return exchange


def vary_case(rng: Random, text: str) -> str:
    """The same sentence as a hurried typist writes it: sometimes without the capital or the final mark."""
    roll = rng.random()
    if roll < 0.25 and len(text) > 1 and not text[:2].isupper():
        text = text[0].lower() + text[1:]
    if rng.random() < 0.2 and text[-1] in ".?!":
        text = text[:-1]
    return text
