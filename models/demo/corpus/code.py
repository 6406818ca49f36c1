"""Small Python functions from a description, each with asserts that an evaluation runs.

Three groups: one-line arithmetic on a number, a composed list function (filter, map, fold), and well-known functions.
"""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from random import Random

from models.demo.corpus.base import Exchange, vary_case
from models.demo.corpus.code_classics import CLASSICS

NUMBER_RULES = (
    # (what it does, expression, stem of a name)
    ("adds {k} to a number", "x + {k}", "add_{k}"),
    ("subtracts {k} from a number", "x - {k}", "subtract_{k}"),
    ("multiplies a number by {k}", "x * {k}", "times_{k}"),
    ("divides a number by {k} and drops the rest", "x // {k}", "divide_by_{k}"),
    ("returns the rest of dividing a number by {k}", "x % {k}", "modulo_{k}"),
    ("checks if a number is divisible by {k}", "x % {k} == 0", "is_divisible_by_{k}"),
    ("checks if a number is greater than {k}", "x > {k}", "is_greater_than_{k}"),
    ("checks if a number is less than {k}", "x < {k}", "is_less_than_{k}"),
    ("checks if a number equals {k}", "x == {k}", "equals_{k}"),
    ("returns the larger of a number and {k}", "max(x, {k})", "at_least_{k}"),
    ("returns the smaller of a number and {k}", "min(x, {k})", "at_most_{k}"),
    ("raises a number to the power of {k}", "x ** {k}", "power_{k}"),
)
FILTERS = (
    ("", "", ""),
    ("even ", " if x % 2 == 0", "even_"),
    ("odd ", " if x % 2 == 1", "odd_"),
    ("positive ", " if x > 0", "positive_"),
    ("negative ", " if x < 0", "negative_"),
)
LIMITS = (
    (" greater than {k}", " if x > {k}", "_above_{k}"),
    (" less than {k}", " if x < {k}", "_below_{k}"),
    (" divisible by {k}", " if x % {k} == 0", "_divisible_by_{k}"),
)
MAPS = (
    ("{f}numbers", "x", "{f}numbers"),
    ("the squares of the {f}numbers", "x * x", "{f}squares"),
    ("the cubes of the {f}numbers", "x ** 3", "{f}cubes"),
    ("the doubles of the {f}numbers", "2 * x", "{f}doubles"),
    ("the absolute values of the {f}numbers", "abs(x)", "{f}absolutes"),
)
FOLDS = (
    ("returns the sum of {m} in a list", "sum({e} for x in numbers{c})", "sum_{s}"),
    ("returns a list of {m} in a list", "[{e} for x in numbers{c}]", "{s}"),
    ("counts {m} in a list", "len([{e} for x in numbers{c}])", "count_{s}"),
    ("returns the largest of {m} in a list", "max({e} for x in numbers{c})", "largest_{s}"),
    ("returns the smallest of {m} in a list", "min({e} for x in numbers{c})", "smallest_{s}"),
    ("returns the sorted list of {m} in a list", "sorted({e} for x in numbers{c})", "sorted_{s}"),
)
REQUESTS = (
    "Write a function that {d}.", "Write a Python function that {d}.", "Give me a function that {d}.",
    "Write a Python function {n} that {d}.", "Write a function called {n} that {d}.",
    "Can you write a function that {d}?",
    "I need a Python function that {d}.", "Please write a function that {d}.", "Code a function that {d}.",
    "Define a function {n} that {d}.", "Show me a Python function that {d}.", "python function that {d}",
)
OWN_NAMES = (
    "f", "g", "helper", "solve", "compute", "work", "calc", "run", "process", "result", "my_function", "convert",
    "check", "apply",
)
SAMPLE_LIST = [3, -4, 12, 7, 8, -9, 15, 20, 1, 0, -2, 45, 60, 33, 100]


def fenced(source: str) -> str:
    """The answer's form: one fenced block, nothing else."""
    return f"```python\n{source}\n```"


def make(rng: Random) -> Exchange:
    """One request for a function and its source."""
    roll = rng.random()
    if roll < 0.3:
        description, name, source, call = _number_function(rng)
    elif roll < 0.65:
        description, name, source, call = _list_function(rng)
    else:
        return _classic(rng)
    request = rng.choice(REQUESTS)
    if "{n}" in request and rng.random() < 0.6:
        own = rng.choice(OWN_NAMES)
        source, call, name = source.replace(f"def {name}(", f"def {own}(", 1), call.replace(name, own, 1), own
    user = vary_case(rng, request.format(d=description, n=name))
    return Exchange("code", f"{description}|{name}", user, fenced(source), _asserts(source, call))


def _number_function(rng: Random) -> tuple[str, str, str, str]:
    what, expression, stem = rng.choice(NUMBER_RULES)
    k = rng.randrange(2, 5) if "power" in what else rng.randrange(2, 100)
    name = stem.format(k=k)
    source = f"def {name}(x):\n    return {expression.format(k=k)}"
    return what.format(k=k), name, source, f"[{name}(x) for x in (0, 1, 7, 42, 99, {k}, {2 * k}, {k + 1})]"


def _list_function(rng: Random) -> tuple[str, str, str, str]:
    filter_word, condition, filter_name = rng.choice(FILTERS)
    map_words, element, map_name = rng.choice(MAPS)
    tail, suffix = "", ""
    if not filter_word and rng.random() < 0.7:
        k = rng.randrange(2, 31)
        words, test, end = rng.choice(LIMITS)
        tail, condition, suffix = words.format(k=k), test.format(k=k), end.format(k=k)
    fold_words, expression, fold_name = rng.choice(FOLDS)
    described = map_words.format(f=filter_word)
    described = ("the " if not described.startswith("the ") else "") + described + tail
    name = fold_name.format(s=map_name.format(f=filter_name) + suffix)
    source = f"def {name}(numbers):\n    return {expression.format(e=element, c=condition)}"
    return fold_words.format(m=described), name, source, f"{name}({SAMPLE_LIST})"


def _classic(rng: Random) -> Exchange:
    descriptions, name, source, call = rng.choice(CLASSICS)
    request = rng.choice(REQUESTS)
    shown = rng.choice(OWN_NAMES) if "{n}" in request and rng.random() < 0.4 else name
    source, call = source.replace(name + "(", shown + "("), call.replace(name + "(", shown + "(")
    user = vary_case(rng, request.format(d=rng.choice(descriptions), n=shown))
    return Exchange("code", user, user, fenced(source), _asserts(source, call))


def _asserts(source: str, call: str) -> str:
    scope: dict[str, object] = {}
    with redirect_stdout(StringIO()):
        exec(source, scope)  # our own templates
        return f"assert {call} == {eval(call, scope)!r}"
