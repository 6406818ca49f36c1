"""Questions over a given passage: every answer is a value that stands in the passage and must be copied from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from models.demo.corpus import words as w
from models.demo.corpus.base import Exchange, vary_case

UNKNOWN = "The passage does not say."


@dataclass(frozen=True, slots=True)
class Fact:
    """One sentence of a passage with the questions it answers; `reply` holds the value in its own sentence."""

    sentence: str
    questions: tuple[str, ...]
    reply: str
    value: str


def _home(rng: Random, n: str) -> Fact:
    v = w.place(rng)
    verb = rng.choice(("lives in", "lives in", "has a home in"))
    return Fact(f"{n} {verb} {v}.", (f"Where does {n} live?", f"In which city does {n} live?"), f"{n} lives in {v}.", v)


def _job(rng: Random, n: str) -> Fact:
    v = rng.choice(w.JOBS)
    return Fact(
        f"{n} works as {a_or_an(v)}.",
        (f"What is {n}'s job?", f"What does {n} work as?", f"What does {n} do?"),
        f"{n} works as {a_or_an(v)}.",
        v,
    )


def _thing(rng: Random, n: str) -> Fact:
    c, t = rng.choice(w.COLOURS), rng.choice(w.THINGS)
    return Fact(
        rng.choice((f"{n} has {a_or_an(c)} {t}.", f"{n}'s {t} is {c}.", f"{n} owns {a_or_an(c)} {t}.")),
        (f"What colour is {n}'s {t}?", f"What color is {n}'s {t}?", f"Which colour does {n}'s {t} have?"),
        f"{n}'s {t} is {c}.",
        c,
    )


def _age(rng: Random, n: str) -> Fact:
    v = str(rng.randrange(5, 90))
    return Fact(f"{n} is {v} years old.", (f"How old is {n}?", f"What is {n}'s age?"), f"{n} is {v} years old.", v)


def _birthday(rng: Random, n: str) -> Fact:
    v = f"{rng.randrange(1, 29)} {rng.choice(w.MONTHS)}"
    return Fact(
        rng.choice((f"{n} was born on {v}.", f"{n}'s birthday is on {v}.")),
        (f"When was {n} born?", f"When is {n}'s birthday?"),
        f"{n}'s birthday is on {v}.",
        v,
    )


def _food(rng: Random, n: str) -> Fact:
    v = rng.choice(w.FOODS)
    return Fact(
        rng.choice((f"{n} likes to eat {v}.", f"{n}'s favourite food is {v}.")),
        (f"What does {n} like to eat?", f"What is {n}'s favourite food?"),
        f"{n} likes to eat {v}.",
        v,
    )


def _pet(rng: Random, n: str) -> Fact:
    a = rng.choice(w.ANIMALS)
    v = w.invented_name(rng) if rng.random() < 0.4 else rng.choice(w.PETS)
    return Fact(
        rng.choice((f"{n} has a {a} called {v}.", f"{n} has a {a} named {v}.")),
        (f"What is the name of {n}'s {a}?", f"What is {n}'s {a} called?"),
        f"{n}'s {a} is called {v}.",
        v,
    )


def _count(rng: Random, n: str) -> Fact:
    v, i = str(rng.randrange(2, 100)), rng.choice(w.ITEMS)
    return Fact(
        rng.choice((f"{n} has {v} {i}.", f"{n} owns {v} {i}.")),
        (f"How many {i} does {n} have?", f"How many {i} does {n} own?"),
        f"{n} has {v} {i}.",
        v,
    )


def _travel(rng: Random, n: str) -> Fact:
    v = rng.choice(w.VEHICLES)
    p = w.place(rng)
    if rng.random() < 0.5:
        return Fact(
            f"{n} travelled to {p} by {v}.",
            (f"How did {n} travel to {p}?", f"How did {n} get to {p}?"),
            f"{n} travelled by {v}.",
            v,
        )
    return Fact(
        f"{n} travelled to {p} by {v}.",
        (f"Where did {n} travel?", f"Where did {n} go?"),
        f"{n} travelled to {p}.",
        p,
    )


def _plays(rng: Random, n: str) -> Fact:
    v = rng.choice(w.SPORTS) if rng.random() < 0.5 else "the " + rng.choice(w.INSTRUMENTS)
    return Fact(f"{n} plays {v}.", (f"What does {n} play?", f"What can {n} play?"), f"{n} plays {v}.", v)


def place_fact(rng: Random, kind: str, p: str) -> Fact:
    """A fact of the given kind about the town `p`."""
    b = rng.choice(w.BUILDINGS)
    if kind == "built":
        v = str(rng.randrange(1500, 2024))
        return Fact(
            f"The {b} in {p} was built in {v}.",
            (f"When was the {b} in {p} built?", f"In which year was the {b} in {p} built?"),
            f"The {b} in {p} was built in {v}.",
            v,
        )
    if kind == "opens":
        v = f"{rng.randrange(6, 13)} o'clock"
        return Fact(
            f"The {b} in {p} opens at {v}.",
            (f"When does the {b} in {p} open?", f"At what time does the {b} in {p} open?"),
            f"The {b} in {p} opens at {v}.",
            v,
        )
    if kind == "river":
        v = w.invented_name(rng)
        return Fact(
            f"The river in {p} is called {v}.",
            (f"What is the river in {p} called?", f"What is the name of the river in {p}?"),
            f"The river in {p} is called {v}.",
            v,
        )
    if kind == "mayor":
        v = w.person(rng)
        return Fact(
            f"The mayor of {p} is {v}.",
            (f"Who is the mayor of {p}?", f"What is the name of the mayor of {p}?"),
            f"The mayor of {p} is {v}.",
            v,
        )
    raise ValueError(f"unknown kind of fact: {kind}")


PERSON_KINDS: dict[str, Callable[[Random, str], Fact]] = {
    "home": _home,
    "job": _job,
    "thing": _thing,
    "age": _age,
    "birthday": _birthday,
    "food": _food,
    "pet": _pet,
    "count": _count,
    "travel": _travel,
    "plays": _plays,
}
PLACE_KINDS = ("built", "opens", "river", "mayor")
FRAMES = (
    "Passage: {p}\nQuestion: {q}",
    "Passage: {p}\n\nQuestion: {q}",
    "{p}\n\n{q}",
    "{p}\n{q}",
    "{p} {q}",
    "Read the passage and answer the question.\n{p}\n{q}",
    "Read this: {p}\n{q}",
    "Text: {p}\nQuestion: {q}",
    "Here is a text: {p} {q}",
    "Answer the question from the text.\nText: {p}\nQuestion: {q}",
)
FOLLOW_UPS = ("{q}", "{q}", "And {l}", "One more question: {q}", "Now tell me: {q}", "Question: {q}")


def a_or_an(noun: str) -> str:
    """The noun with its indefinite article."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def ask_who(rng: Random, fact: Fact, name: str) -> Fact:
    """The reverse question of a `lives in`, `works as` or `plays` sentence: the person is the value."""
    rest = fact.reply[len(name) + 1 :]
    return Fact(fact.sentence, (f"Who {rest[:-1]}?",), f"{name} {rest}", name)


def make(rng: Random) -> Exchange:
    """One passage of three to seven facts, its first question and up to five follow-ups."""
    names = w.people(rng, rng.choice((1, 2, 2, 3)))
    facts: list[Fact] = []
    values: set[str] = set()
    for n in names:
        for kind in rng.sample(list(PERSON_KINDS), rng.choice((1, 2, 2, 3))):
            fact = PERSON_KINDS[kind](rng, n)
            if fact.value in values or fact.value in names:
                continue
            values.add(fact.value)
            reverse = kind in ("home", "job", "plays") and rng.random() < 0.25
            facts.append(ask_who(rng, fact, n) if reverse else fact)
    for kind in rng.sample(PLACE_KINDS, rng.choice((0, 0, 1, 1, 2))):
        facts.append(place_fact(rng, kind, w.place(rng)))
    if len(facts) < 2:
        return make(rng)
    if rng.random() < 0.6:
        rng.shuffle(facts)
    passage = " ".join(fact.sentence for fact in facts)
    chosen = rng.sample(facts, min(6, len(facts)))
    asked = [(vary_case(rng, rng.choice(fact.questions)), fact.reply, fact.value) for fact in chosen]
    if rng.random() < 0.06:
        stranger = rng.choice([n for n in w.NAMES if n not in passage])
        fact = PERSON_KINDS[rng.choice(list(PERSON_KINDS))](rng, stranger)
        asked[0] = (rng.choice(fact.questions), UNKNOWN, UNKNOWN)
    question, reply, value = asked[0]
    user = rng.choice(FRAMES).format(p=passage, q=question)
    extra = tuple((_follow_up(rng, q), r, v) for q, r, v in asked[1 : rng.choice((1, 2, 4, 6, 6))])
    return Exchange("passages", passage, user, reply, value, extra)


def _follow_up(rng: Random, question: str) -> str:
    lowered = question[0].lower() + question[1:]
    return rng.choice(FOLLOW_UPS).format(q=question, l=lowered)
