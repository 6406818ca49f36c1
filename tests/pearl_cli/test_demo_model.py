"""The model that ships: it answers held-out problems as its card says, from half of its experts, through the product
itself.
"""

import ast
import os

import pytest

from models.chat_template import ChatTemplate
from models.demo.corpus import exchange
from pearl_cli.options import RunOptions
from pearl_cli.sampling import Sampler, SamplingParams
from pearl_cli.session import DEMO_BUDGET, demo_model, open_session
from pearl_cli.terminal import Terminal

HELD_OUT_SEED, COUNT = 77, 20  # the first problems of those that the card's figures are on
MIN_EXACT = {"arithmetic": 0.9, "passages": 0.8}


@pytest.fixture(scope="module")
def session():
    with open_session(RunOptions(no_profile=True), Terminal("off")) as opened:
        yield opened


def reply(session, text):
    """The greedy reply to one question."""
    template = ChatTemplate.from_metadata(session.opened.gguf.metadata, session.tokenizer)
    ids = template.encode(session.tokenizer, [{"role": "user", "content": text}])
    sampler = Sampler(SamplingParams(temperature=0), session.opened.config.vocab_size)
    steps = session.engine.generate(ids, sampler, 200, session.tokenizer.stop_ids)
    return session.tokenizer.continuation(step.token_id for step in steps)


def test_files_are_small_and_default_budget_holds_half_of_the_experts(session):
    folder = demo_model().parent
    assert sum(os.path.getsize(path) for path in folder.glob("*.gguf")) <= 16 << 20
    plan = session.opened.plan
    assert DEMO_BUDGET.percent == 50
    assert 0.3 < sum(plan.slots.capacities) / (32 * 6) <= 0.5


@pytest.mark.parametrize("domain", list(MIN_EXACT))
def test_held_out_problems(session, domain):
    problems = [exchange(domain, HELD_OUT_SEED, index, held_out=True) for index in range(COUNT)]
    replies = [reply(session, problem.user) for problem in problems]
    wanted = [f"The answer is {p.expect}." if domain == "arithmetic" else p.assistant for p in problems]
    right = sum(got.endswith(want) for got, want in zip(replies, wanted, strict=True))
    assert right / COUNT >= MIN_EXACT[domain]
    assert session.opened.controller.totals.misses > 0


def test_code_parses(session):
    problems = [exchange("code", HELD_OUT_SEED, index, held_out=True) for index in range(10)]
    for problem in problems:
        text = reply(session, problem.user)
        ast.parse(text.split("```python\n")[-1].split("```")[0])
