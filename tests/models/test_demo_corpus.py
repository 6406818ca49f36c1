"""The demo model's generated corpus: deterministic, split cleanly, and right in every answer it teaches."""

from __future__ import annotations

import ast
import re

import jinja2
import pytest

from models.demo.corpus import DOMAINS, arithmetic, conversation, exchange
from models.demo.corpus.base import is_held_out
from models.demo.corpus.passages import UNKNOWN
from models.demo.tokenizer import (
    CHAT_TEMPLATE,
    SPECIALS,
    encode_conversation,
    encode_prompt,
    packed_rows,
    train_tokenizer,
)

COUNT = 150


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(seed=3, conversations=200)


@pytest.mark.parametrize("domain", DOMAINS)
def test_exchanges_depend_only_on_seed_and_index(domain):
    assert [exchange(domain, 5, i) for i in range(20)] == [exchange(domain, 5, i) for i in range(20)]
    assert [exchange(domain, 5, i) for i in range(20)] != [exchange(domain, 6, i) for i in range(20)]


def test_conversations_are_deterministic_and_alternate():
    for index in range(40):
        messages = conversation(2, index)
        assert messages == conversation(2, index)
        roles = [m["role"] for m in messages if m["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)


@pytest.mark.parametrize("domain", DOMAINS)
def test_held_out_problems_never_occur_in_training(domain):
    trained = {exchange(domain, 1, i).key for i in range(COUNT)}
    held_out = {exchange(domain, 1, i, held_out=True).key for i in range(COUNT)}
    assert len(held_out) > COUNT // 10
    assert not trained & held_out
    assert all(is_held_out(f"{domain}|{key}") for key in held_out)
    assert not any(is_held_out(f"{domain}|{key}") for key in trained)


def test_training_conversations_hold_no_held_out_sum():
    plain = re.compile(r"^(\d+) ?([+*x-]) ?(\d+)[ =?]*$")
    seen = 0
    for index in range(400):
        for message in conversation(8, index):
            found = plain.match(message["content"])
            if found and int(found[1]) < 1000 and int(found[3]) < 1000:
                a, b, product = int(found[1]), int(found[3]), found[2] in "*x"
                if product and min(a, b) > 9:
                    continue  # refused as out of range, not a problem
                key = f"{min(a, b)}*{max(a, b)}" if product else f"{a}{found[2]}{b}"
                assert not is_held_out("arithmetic|" + key)
                seen += 1
    assert seen > 20


def test_arithmetic_steps_are_right():
    for index in range(600):
        problem = exchange("arithmetic", 4, index)
        head = re.findall(r"^(\d+) ([+*-]) (\d+)$", problem.assistant, re.MULTILINE)
        assert len(head) == 1
        a, op, b = int(head[0][0]), head[0][1], int(head[0][2])
        value = {"+": a + b, "-": a - b, "*": a * b}[op]
        sign = "-" if "less than" in problem.assistant else ""
        assert problem.assistant.endswith(f"The answer is {sign}{value}.")
        assert problem.expect == f"{sign}{value}"
        for left, right in re.findall(r"(?<![\d+*-])([\d+*-]+)=(\d+)", problem.assistant):
            assert eval(left) == int(right), problem.assistant
        written = re.findall(r"write (\d+)", problem.assistant)
        assert int("".join(reversed(written))) == value


@pytest.mark.parametrize(
    ("op", "a", "b", "last"),
    [
        ("+", 999, 999, "1998"),
        ("+", 0, 0, "0"),
        ("-", 1, 999, "-998"),
        ("-", 500, 500, "0"),
        ("*", 9, 87, "783"),
        ("*", 0, 7, "0"),
    ],
)
def test_arithmetic_at_the_edges(op, a, b, last):
    steps, value = arithmetic.solve(op, a, b)
    assert str(value) == last
    assert steps.endswith(f"The answer is {last}.")


def test_operands_in_a_question_are_the_ones_worked_out():
    for index in range(300):
        problem = exchange("arithmetic", 9, index)
        asked = sorted(int(n) for n in re.findall(r"\d+", problem.user))
        worked = re.search(r"^(\d+) [+*-] (\d+)$", problem.assistant, re.MULTILINE)
        assert worked is not None
        assert asked == sorted(int(n) for n in worked.groups())


def test_passage_answers_stand_in_the_passage():
    unknown = 0
    for index in range(300):
        problem = exchange("passages", 4, index)
        for reply, value in [(problem.assistant, problem.expect), *((r, v) for _, r, v in problem.follow_ups)]:
            if value == UNKNOWN:
                unknown += 1
                assert reply == UNKNOWN
            else:
                assert value in problem.key
                assert value in reply
        assert problem.key in problem.user
    assert 0 < unknown < 60


def test_a_question_has_one_answer_in_its_passage():
    for index in range(300):
        problem = exchange("passages", 11, index)
        asked = re.search(r"[Ww]ho (lives in|plays|works as) (.+?)\??$", problem.user)
        if asked and problem.expect != UNKNOWN:
            assert problem.key.count(f" {asked[2]}.") == 1


def test_code_answers_parse_and_pass_their_asserts(capsys):
    for index in range(300):
        problem = exchange("code", 4, index)
        fenced = re.fullmatch(r"```python\n(.*)\n```", problem.assistant, re.DOTALL)
        assert fenced is not None
        tree = ast.parse(fenced[1])
        assert [type(node) for node in tree.body] == [ast.FunctionDef]
        exec(fenced[1] + "\n" + problem.expect, {})
    capsys.readouterr()


def test_code_requests_that_name_the_function_get_that_name():
    seen = 0
    for index in range(300):
        problem = exchange("code", 6, index)
        named = re.search(r"function called (\w+) that", problem.user)
        if named:
            assert f"def {named[1]}(" in problem.assistant
            seen += 1
    assert seen > 5


def test_chat_replies_are_among_the_accepted_ones():
    for index in range(300):
        problem = exchange("chat", 4, index)
        assert problem.assistant in problem.expect.split("\n")
        assert "{" not in problem.user + problem.expect


def test_template_renders_what_the_encoder_encodes(tokenizer):
    messages = conversation(3, 5)
    rendered = jinja2.Template(CHAT_TEMPLATE).render(messages=messages, add_generation_prompt=False)
    ids, weights = encode_conversation(tokenizer, messages)
    assert tokenizer.encode(rendered, add_special_tokens=False).ids == ids[:-1]
    assert len(ids) == len(weights)
    prompt = jinja2.Template(CHAT_TEMPLATE).render(messages=messages[:-1], add_generation_prompt=True)
    assert tokenizer.encode(prompt, add_special_tokens=False).ids == encode_prompt(tokenizer, messages[:-1])


def test_only_replies_and_their_end_marks_have_full_weight(tokenizer):
    messages = [{"role": "user", "content": "3+4"}, {"role": "assistant", "content": "The answer is 7."}]
    ids, weights = encode_conversation(tokenizer, messages)
    full = [i for i, w in zip(ids, weights, strict=True) if w == 1]
    assert tokenizer.decode(full, skip_special_tokens=False) == "The answer is 7.<|end|>"


def test_digits_stand_alone_and_special_tokens_come_first(tokenizer):
    assert [tokenizer.token_to_id(t) for t in SPECIALS] == [0, 1, 2, 3, 4]
    assert tokenizer.encode("1984").tokens == ["1", "9", "8", "4"]
    text = "naïve\tТекст 你好 👍 \n\n  x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_packed_rows_continue_where_they_stopped(tokenizer):
    rows = packed_rows(tokenizer, 3, 0, 128)
    first, second = next(rows), next(rows)
    assert len(first[0]) == len(first[1]) == 128
    assert next(packed_rows(tokenizer, 3, first[2], 128)) == second
