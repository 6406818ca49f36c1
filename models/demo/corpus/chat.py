"""Small talk of the demo corpus: greetings, questions about pearl and itself, remembered names, refusals.

A family is a set of ways to say something and a set of accepted replies; slots in braces are filled alike in both.
"""

from __future__ import annotations

from random import Random

from models.demo.corpus import words as w
from models.demo.corpus.base import Exchange, vary_case
from models.demo.corpus.chat_families import FAMILIES, TOPICS, Family

OPENERS = (
    "",
    "",
    "",
    "",
    "",
    "",
    "Hey, ",
    "Ok, ",
    "So, ",
    "Please tell me: ",
    "Hi! ",
    "Hello, ",
    "Hm, ",
    "Well, ",
    "And ",
)
REFUSAL = Family(
    "refusal",
    (
        "What is {t}?",
        "Tell me about {t}.",
        "Who is {t}?",
        "Explain {t} to me.",
        "What do you know about {t}?",
        "Can you help me with {t}?",
        "Write an essay about {t}.",
        "Do you know {t}?",
        "What do you think about {t}?",
        "How does {t} work?",
        "I want to know more about {t}.",
        "Give me some facts about {t}.",
        "Talk about {t}.",
    ),
    (
        "I do not know about {t}. "
        "I can do small sums, answer questions about a passage, and write small Python functions.",
        "Sorry, I have not learned about {t}. "
        "Give me a small sum, a passage with a question, or ask for a Python function.",
    ),
)
REPEATS = ("Repeat: {t}", "Repeat after me: {t}", "Say {t}", "Please repeat: {t}", "Say this again: {t}", "Echo {t}")
REPEAT_SHARE = 0.15
BIG_SUMS = (
    "What is {a} + {b}?",
    "{a} * {b}",
    "{a}*{b}",
    "What is {a} * {b}?",
    "{a} + {b}",
    "Calculate {a} * {b}.",
    "{a} x {b}",
    "What is {a} - {b}?",
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
    "{a} - {b}",
    "{a}+{b}",
    "{a}-{b}",
)
BIG_REPLY = "That is too big for me. I add and subtract up to three digits and multiply by one digit."
DIVISIONS = (
    "What is {a} / {b}?",
    "{a} / {b}",
    "{a}/{b}",
    "Divide {a} by {b}.",
    "What is {a} divided by {b}?",
    "How much is {a} / {b}?",
    "Calculate {a} / {b}.",
    "{a} divided by {b}",
)
DIVISION_REPLY = "I have not learned to divide. I can add, subtract and multiply."


def make(rng: Random) -> Exchange:
    """One exchange of small talk."""
    roll = rng.random()
    if roll < 0.12:
        return _name_is_remembered(rng)
    if roll < 0.24:
        return _family(rng, REFUSAL, {"t": rng.choice(TOPICS) if rng.random() < 0.8 else w.invented_name(rng)})
    if roll < 0.28:
        return _out_of_range(rng)
    if roll < 0.28 + REPEAT_SHARE:
        return _repeat(rng)
    return _family(rng, rng.choice(FAMILIES), {})


def _family(rng: Random, family: Family, slots: dict[str, str]) -> Exchange:
    said = rng.choice(family.said).format(**slots)
    opener = rng.choice(OPENERS) if family.opens else ""
    user = vary_case(
        rng, opener + (said[0].lower() + said[1:] if opener.endswith((", ", "And ")) and said[:2] != "I " else said)
    )
    if rng.random() < 0.1 and user[-1] in "?.!":
        user += user[-1]
    replies = tuple(reply.format(**slots) for reply in family.replies)
    return Exchange("chat", user, user, rng.choice(replies), "\n".join(replies))


def _name_is_remembered(rng: Random) -> Exchange:
    name = w.person(rng)
    user = vary_case(
        rng,
        rng.choice(
            (
                "My name is {n}.",
                "I am {n}.",
                "Hi, I'm {n}.",
                "Hello, my name is {n}.",
                "I'm {n}.",
                "You can call me {n}.",
                "Hi, my name is {n}.",
                "Call me {n}.",
            )
        ).format(n=name),
    )
    reply = f"Nice to meet you, {name}!"
    asked = rng.choice(
        ("What is my name?", "Do you remember my name?", "Who am I?", "What's my name?", "what is my name")
    )
    follow = ((asked, f"Your name is {name}.", f"Your name is {name}."),) if rng.random() < 0.7 else ()
    return Exchange("chat", user, user, reply, reply, follow)


def _repeat(rng: Random) -> Exchange:
    """A list of unrelated words to say again: the densest practice in copying, which all lookup rests on."""
    pools = (w.NAMES, w.PLACES, w.COLOURS, w.THINGS, w.JOBS, w.FOODS, w.ITEMS, w.ANIMALS, w.PETS)
    words = []
    for _ in range(rng.choice((1, 3, 5, 8, 12, 20))):
        roll = rng.random()
        if roll < 0.3:
            words.append(w.invented_name(rng))
        elif roll < 0.5:
            words.append(str(rng.randrange(1000)))
        else:
            words.append(rng.choice(rng.choice(pools)))
    text = " ".join(words)
    return Exchange("chat", text, rng.choice(REPEATS).format(t=text), text, text)


def _out_of_range(rng: Random) -> Exchange:
    if rng.random() < 0.4:
        b = rng.randrange(1, 20)
        user, reply = rng.choice(DIVISIONS).format(a=b * rng.randrange(1, 40), b=b), DIVISION_REPLY
    else:
        said = rng.choice(BIG_SUMS)
        product = any(sign in said for sign in ("*", " x ", "times", "Multiply"))
        low = 10 if product and rng.random() < 0.6 else 1000
        a, b = rng.randrange(low, low * 100), rng.randrange(low, low * 100)
        user, reply = said.format(a=a, b=b), BIG_REPLY
    user = vary_case(rng, user)
    return Exchange("chat", user, user, reply, reply)
