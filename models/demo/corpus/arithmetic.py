"""Arithmetic with worked steps: + and - up to three digits, times a one-digit number, and one-step word problems.

The steps go digit by digit from the ones, each with its carry, so every token follows from a few earlier ones.
"""

from __future__ import annotations

from random import Random

from models.demo.corpus.base import Exchange, vary_case
from models.demo.corpus.words import ITEMS, people

COLUMNS = ("ones", "tens", "hundreds")
PHRASES = {
    "+": (
        "What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} =", "{a}+{b}=", "{a} + {b} = ?",
        "Calculate {a} + {b}.",
        "How much is {a} + {b}?", "What is {a} plus {b}?", "Add {a} and {b}.", "Compute {a} + {b}.", "{a} plus {b}",
        "What's {a} + {b}?", "What is the sum of {a} and {b}?", "Please add {a} and {b}.", "How much is {a} plus {b}?",
        "Can you add {a} and {b}?", "Solve {a} + {b}.", "What is {a}+{b}?", "Work out {a} + {b}.",
    ),
    "-": (
        "What is {a} - {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} =", "{a}-{b}=", "{a} - {b} = ?",
        "Calculate {a} - {b}.",
        "How much is {a} - {b}?", "What is {a} minus {b}?", "Subtract {b} from {a}.", "Compute {a} - {b}.",
        "{a} minus {b}", "What's {a} - {b}?", "Take {b} away from {a}.", "How much is {a} minus {b}?",
        "Can you subtract {b} from {a}?", "Solve {a} - {b}.", "What is {a}-{b}?", "Work out {a} - {b}.",
    ),
    "*": (
        "What is {a} * {b}?", "{a} * {b}", "{a}*{b}", "{a} x {b}", "{a} * {b} =", "{a}*{b}=", "Calculate {a} * {b}.",
        "How much is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.", "Compute {a} * {b}.",
        "{a} times {b}", "What's {a} * {b}?", "What is {a} x {b}?", "How much is {a} times {b}?",
        "Can you multiply {a} by {b}?", "Solve {a} * {b}.", "What is {a}*{b}?", "Work out {a} * {b}.",
    ),
}
STORIES = {
    "+": (
        "{n} has {a} {i}. {m} gives {n} {b} more. How many {i} does {n} have now?",
        "{n} has {a} {i} and {m} has {b} {i}. How many {i} do they have together?",
        "There are {a} {i} in one box and {b} {i} in another box. How many {i} are there in total?",
        "{n} buys {a} {i} on Monday and {b} {i} on Tuesday. How many {i} does {n} buy in total?",
    ),
    "-": (
        "{n} has {a} {i}. {n} gives {b} to {m}. How many {i} does {n} have left?",
        "There are {a} {i} in a box. {n} takes {b} of them. How many {i} are left?",
        "{n} had {a} {i} and lost {b} of them. How many {i} does {n} have now?",
        "{n} has {a} {i} and {m} has {b} {i}. How many more {i} does {n} have than {m}?",
    ),
    "*": (
        "There are {b} boxes with {a} {i} each. How many {i} are there in total?",
        "{n} buys {b} bags. Each bag holds {a} {i}. How many {i} does {n} have?",
        "{n} collects {a} {i} every day. How many {i} does {n} have after {b} days?",
        "{b} children have {a} {i} each. How many {i} do they have together?",
    ),
}


def add_steps(a: int, b: int) -> str:
    """Column addition of two numbers below 1000; the last column writes its whole sum."""
    width = max(len(str(a)), len(str(b)))
    left, right, lines, carry = f"{a:0{width}}", f"{b:0{width}}", [], 0
    for place in range(width):
        x, y = int(left[-1 - place]), int(right[-1 - place])
        total = x + y + carry
        line = f"{COLUMNS[place]}: {x}+{y}+{carry}={total}, write "
        if place == width - 1:
            lines.append(line + f"{total}.")
        else:
            carry = total // 10
            lines.append(line + f"{total % 10}, carry {carry}.")
    return "\n".join([f"{left} + {right}", *lines, f"The answer is {a + b}."])


def subtract_steps(a: int, b: int) -> str:
    """Column subtraction below 1000; a smaller first number is turned round and its sign kept."""
    if a < b:
        return f"{a} is less than {b}, so I turn it round.\n{_columns_down(b, a)}\nThe answer is -{b - a}."
    return f"{_columns_down(a, b)}\nThe answer is {a - b}."


def _columns_down(a: int, b: int) -> str:
    width = max(len(str(a)), len(str(b)))
    left, right, borrow = f"{a:0{width}}", f"{b:0{width}}", 0
    lines = [f"{left} - {right}"]
    for place in range(width):
        x, y = int(left[-1 - place]), int(right[-1 - place])
        short = x - y - borrow < 0
        head = f"{COLUMNS[place]}: {x}-{y}-{borrow}"
        digit = x - y - borrow + 10 * short
        middle = f" is below 0, {x + 10}-{y}-{borrow}={digit}, write {digit}" if short else f"={digit}, write {digit}"
        borrow = int(short)
        lines.append(head + middle + ("." if place == width - 1 else f", borrow {borrow}."))
    return "\n".join(lines)


def multiply_steps(a: int, b: int) -> str:
    """Column multiplication of a number below 1000 by one digit; a one-digit first factor changes places."""
    product = a * b
    if b > 9:
        a, b = b, a
    width, carry = len(str(a)), 0
    lines = [f"{a} * {b}"]
    for place in range(width):
        x = int(str(a)[-1 - place])
        total = x * b + carry
        line = f"{COLUMNS[place]}: {x}*{b}={x * b}, {x * b}+{carry}={total}, write "
        carry = total // 10
        lines.append(line + (f"{total}." if place == width - 1 else f"{total % 10}, carry {carry}."))
    return "\n".join([*lines, f"The answer is {product}."])


def operands(rng: Random, op: str) -> tuple[int, int]:
    """A pair of operands; short numbers are as frequent as long ones."""
    a, b = (rng.randrange(0 if d == 1 else 10 ** (d - 1), 10**d) for d in rng.choices((1, 2, 3), (2, 5, 5), k=2))
    if op == "*":
        a, b = (rng.randrange(10) if rng.random() < 0.2 else rng.randrange(10, 100)), rng.randrange(10)
        if rng.random() < 0.15:
            a = rng.randrange(100, 1000)
    if op == "-" and a < b and (b > 99 or rng.random() < 0.7):
        a, b = b, a
    return a, b


def solve(op: str, a: int, b: int) -> tuple[str, int]:
    """The worked steps and the result of one problem."""
    if op == "+":
        return add_steps(a, b), a + b
    if op == "-":
        return subtract_steps(a, b), a - b
    return multiply_steps(a, b), a * b


def make(rng: Random) -> Exchange:
    """One problem, one in four dressed as a story."""
    op = rng.choice("++--*")
    a, b = operands(rng, op)
    if rng.random() < 0.25 and a >= b and b > 1:
        n, m = people(rng, 2)
        user = rng.choice(STORIES[op]).format(n=n, m=m, i=rng.choice(ITEMS), a=a, b=b)
        steps, result = solve(op, a, b)
    else:
        swap = op == "*" and rng.random() < 0.4
        a, b = (b, a) if swap else (a, b)
        user = vary_case(rng, rng.choice(PHRASES[op]).format(a=a, b=b))
        steps, result = solve(op, a, b)
    key = f"{min(a, b)}*{max(a, b)}" if op == "*" else f"{a}{op}{b}"
    return Exchange("arithmetic", key, user, steps, str(result))
