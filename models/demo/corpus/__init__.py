"""The generated text of the demo model: four domains, conversations that mix them, and the chat form.

`conversation(seed, index)` is a pure function of its arguments. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from models.demo.corpus import arithmetic, chat, code, passages
from models.demo.corpus.base import Exchange, draw

DOMAINS: dict[str, Callable[[Random], Exchange]] = {
    "code": code.make,
    "chat": chat.make,
    "arithmetic": arithmetic.make,
    "passages": passages.make,
}
SHARES = {"code": 20, "chat": 18, "arithmetic": 38, "passages": 24}
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are pearl, a small demo model.",
    "You are the demo model of pearl. Answer briefly.",
    "Answer step by step.",
    "You are a friendly assistant.",
    "Be brief.",
    "You are an expert.",
)
Message = dict[str, str]


def exchange(domain: str, seed: int, index: int, held_out: bool = False) -> Exchange:
    """The `index`-th exchange of one domain, from the training or the held-out side of the split."""
    return draw(DOMAINS[domain], Random(f"{seed}/{domain}/{index}/{held_out}"), held_out)


def conversation(seed: int, index: int) -> list[Message]:
    """A training conversation of one to six exchanges; three in five stay in one domain."""
    rng = Random(f"{seed}/conversation/{index}")
    messages: list[Message] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    names, weights = list(SHARES), list(SHARES.values())
    domain = rng.choices(names, weights)[0]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 6))):
        drawn = draw(DOMAINS[domain], rng, held_out=False)
        messages += _turn(drawn.user, drawn.assistant)
        for user, reply, _value in drawn.follow_ups:
            messages += _turn(user, reply)
        if rng.random() < 0.5:
            domain = rng.choices(names, weights)[0]
    return messages


def _turn(user: str, assistant: str) -> list[Message]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
