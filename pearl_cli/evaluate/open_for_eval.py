"""Open a model for an evaluation: window length as context, everything in memory where it fits, room for logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from models.config import ModelConfig
from models.errors import MemoryPlanError, UsageError
from pearl_cli.evaluate.evaluation import DEFAULT_CONTEXT, EvalRequest, eval_bytes
from pearl_cli.evaluate.windows import LEAST_WINDOW
from pearl_cli.memory_plan import typed
from pearl_cli.open_model import open_model
from pearl_cli.options import RunOptions
from pearl_cli.session import Session, demo_model, open_session
from pearl_cli.sizes import Size
from pearl_cli.terminal import Terminal


@contextmanager
def open_for_eval(options: RunOptions, request: EvalRequest, terminal: Terminal) -> Iterator[Session]:
    """A session with exact routing; `run_settings` routes it. Raises UsageError and MemoryPlanError where the ceiling
    leaves no room.
    """
    gguf = open_model(options.model or demo_model(), options, terminal.note)
    try:
        plain, extra_bytes = _plain_options(options, ModelConfig.from_gguf(gguf), request)
    except BaseException:
        gguf.close()
        raise
    try:
        with open_session(plain, terminal, use_profile=False, gguf=gguf) as session:
            yield session
    except MemoryPlanError as error:
        if options.ram is None:
            raise
        raise MemoryPlanError(f"{error}; and {typed(extra_bytes)} more for the logits of a window") from error


def _plain_options(options: RunOptions, config: ModelConfig, request: EvalRequest) -> tuple[RunOptions, int]:
    """`options` with a window as context, exact routing, and a ceiling that leaves room for logits, and their bytes."""
    context = min(DEFAULT_CONTEXT, config.context_length) if options.ctx_size is None else options.ctx_size
    if context == 0:
        context = config.context_length
    if context < LEAST_WINDOW:
        raise UsageError(f"-c {context}: a window to score has at least {LEAST_WINDOW} tokens; the usual is 512")
    extra = eval_bytes(context, config.vocab_size, options.ubatch_size, request.scored, len(request.settings))
    ram = options.ram
    if ram is not None:
        if ram.n_bytes <= extra:
            raise UsageError(
                f"--ram {typed(ram.n_bytes, up=False)}: the logits of one window of {context} tokens alone take "
                f"{typed(extra)}; raise it or lower -c"
            )
        ram = Size(n_bytes=ram.n_bytes - extra)
    budget = options.budget
    if options.model is None and options.ram is None and budget is None:
        budget = Size(percent=100)  # the demo model's streaming is for show
    plain = dataclasses.replace(
        options, ctx_size=context, ram=ram, budget=budget, routing="exact", lambda_=None, top_j=None, inserts=None,
        steer=None, residency=None,
    )  # fmt: skip
    return plain, extra
