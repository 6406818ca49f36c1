"""Score an exported demo model on held-out problems: `python -m models.demo.evaluate HF_FOLDER [--count N]`.

Prints one JSON object: loss and exact match for each domain, and how the domains use the experts.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from itertools import combinations
from pathlib import Path
from types import FrameType

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from models.demo.corpus import DOMAINS, Message, exchange
from models.demo.corpus.base import Exchange
from models.demo.evaluate_replies import greedy_replies, load_exported
from models.demo.tokenizer import encode_conversation, encode_prompt
from models.demo.train_model import DemoModel

HELD_OUT_SEED = 77
ALLOWED_BUILTINS = (
    "abs",
    "bool",
    "dict",
    "enumerate",
    "float",
    "int",
    "len",
    "list",
    "max",
    "min",
    "print",
    "range",
    "reversed",
    "round",
    "set",
    "sorted",
    "str",
    "sum",
    "tuple",
    "zip",
)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError when the block runs longer; generated loops need not end."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def code_outcome(reply: str, asserts: str) -> str:
    """`passes`, `parses` or `broken`: what became of a reply that should hold one fenced function."""
    import builtins

    fenced = re.fullmatch(r"```python\n(.*)\n```", reply, re.DOTALL)
    if fenced is None:
        return "broken"
    try:
        program = compile(fenced[1] + "\n" + asserts, "<reply>", "exec")
    except (SyntaxError, ValueError):
        return "broken"
    scope = {
        "__builtins__": {name: getattr(builtins, name) for name in ALLOWED_BUILTINS}
        | {"AssertionError": AssertionError}
    }
    try:
        with time_limit(1.0), redirect_stdout(StringIO()):
            exec(program, scope)
    except Exception:  # whatever a generated program raises, it has failed its asserts
        return "parses"
    return "passes"


def is_right(problem: Exchange, reply: str) -> bool:
    """The rule of each domain: last number, whole looked-up sentence, asserts pass, or an accepted reply."""
    if problem.domain == "arithmetic":
        found = re.search(r"The answer is (-?\d+)\.$", reply)
        return found is not None and found[1] == problem.expect
    if problem.domain == "passages":
        return reply == problem.assistant
    if problem.domain == "code":
        return code_outcome(reply, problem.expect) == "passes"
    return reply in problem.expect.split("\n")


def ask(user: str) -> list[Message]:
    """A conversation that holds one question."""
    return [{"role": "user", "content": user}]


@torch.no_grad()  # type: ignore[untyped-decorator]
def reply_loss_and_routes(
    model: DemoModel, tokenizer: Tokenizer, problems: list[Exchange]
) -> tuple[float, torch.Tensor]:
    """Mean loss of the reference replies' tokens, and the share of every layer's choices per expert [layers, E]."""
    total, count = 0.0, 0
    used = torch.zeros(model.c.num_hidden_layers, model.c.num_experts)
    for problem in problems:
        messages = [*ask(problem.user), {"role": "assistant", "content": problem.assistant}]
        ids, weights = encode_conversation(tokenizer, messages)
        routes: list[torch.Tensor] = []
        logits, _ = model(torch.tensor([ids]), routes=routes)
        losses = F.cross_entropy(logits[0, :-1], torch.tensor(ids[1:]), reduction="none")
        mine = torch.tensor(weights[1:]) == 1
        total, count = total + float(losses[mine].sum()), count + int(mine.sum())
        used += torch.stack([torch.bincount(chosen.flatten(), minlength=model.c.num_experts) for chosen in routes])
    return total / count, used / used.sum(1, keepdim=True)


def follow_up_share(model: DemoModel, tokenizer: Tokenizer, problems: list[Exchange]) -> float:
    """Exact share of second turns (another question about a passage, a remembered name) after a given first."""
    asked = [p for p in problems if p.follow_ups]
    prompts = [
        encode_prompt(
            tokenizer, [*ask(p.user), {"role": "assistant", "content": p.assistant}, *ask(p.follow_ups[0][0])]
        )
        for p in asked
    ]
    replies = greedy_replies(model, tokenizer, prompts)
    return sum(r == p.follow_ups[0][1] for p, r in zip(asked, replies, strict=True)) / max(1, len(asked))


def routing_summary(used: dict[str, torch.Tensor]) -> dict[str, object]:
    """Effective number of experts (exp of entropy, mean over layers) and the overlap of usage between domains."""

    def effective(shares: torch.Tensor) -> float:
        return float(torch.special.entr(shares).sum(1).exp().mean())

    overlap = {
        f"{a}/{b}": round(float(torch.minimum(used[a], used[b]).sum(1).mean()), 3) for a, b in combinations(used, 2)
    }
    return {
        "effective_experts": round(effective(torch.stack(list(used.values())).mean(0)), 2),
        "effective_experts_by_domain": {name: round(effective(shares), 2) for name, shares in used.items()},
        "usage_overlap": overlap,
    }


def evaluate(folder: Path, count: int, show_wrong: int = 0) -> dict[str, object]:
    """All figures of the card for one exported model."""
    model, tokenizer = load_exported(folder)
    report: dict[str, object] = {"count": count, "held_out_seed": HELD_OUT_SEED}
    used: dict[str, torch.Tensor] = {}
    for domain in DOMAINS:
        problems = [exchange(domain, HELD_OUT_SEED, index, held_out=True) for index in range(count)]
        replies = greedy_replies(model, tokenizer, [encode_prompt(tokenizer, ask(p.user)) for p in problems])
        right = [is_right(p, reply) for p, reply in zip(problems, replies, strict=True)]
        loss, used[domain] = reply_loss_and_routes(model, tokenizer, problems[:100])
        figures = {
            "exact": sum(right) / count,
            "stderr": math.sqrt(sum(right) * (count - sum(right)) / count**3),
            "loss": loss,
        }
        if domain == "code":
            outcomes = [code_outcome(reply, p.expect) for p, reply in zip(problems, replies, strict=True)]
            figures["parses"] = sum(o != "broken" for o in outcomes) / count
        if domain in ("passages", "chat"):
            figures["follow_up_exact"] = follow_up_share(model, tokenizer, problems)
        report[domain] = {name: round(value, 4) for name, value in figures.items()}
        wrong = [(p, reply) for p, reply, ok in zip(problems, replies, right, strict=True) if not ok]
        for problem, reply in wrong[:show_wrong]:
            print(f"--- {domain}: {problem.user}\n>>> {reply}\n=== {problem.assistant}")
    report["routing"] = routing_summary(used)
    return report


def main() -> None:
    """Parse the options and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="transformers folder of the exported model")
    parser.add_argument("--count", type=int, default=200, help="held-out problems a domain")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show-wrong", type=int, default=0, help="print this many wrong replies a domain")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(json.dumps(evaluate(args.folder, args.count, args.show_wrong), indent=2))


if __name__ == "__main__":
    main()
