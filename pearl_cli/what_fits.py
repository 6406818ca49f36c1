"""Advice for a ceiling that is too low: which smaller context, cache types or chunk would fit under it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Literal

from models.errors import MemoryPlanError, UsageError
from pearl_cli.memory_plan import FLOOR_MARGIN_BYTES, MemoryPlan, typed
from pearl_cli.options import RunOptions
from pearl_cli.sizes import Size

LEAST_CONTEXT = 256  # a shorter one is of no use in a chat
_LEAST_CHUNK = 64
_FLAGS = {"ctx_size": "-c", "cache_type_k": "-ctk", "cache_type_v": "-ctv", "ubatch_size": "-ub"}


def what_fits(
    plan: Callable[[RunOptions], MemoryPlan],
    options: RunOptions,
    context: int,
    ceiling: Literal["ram", "vram"] = "ram",
) -> str:
    """The mildest change of flags that `plan` accepts, as a user types it, or the least ceiling with all of them; empty
    where none of them matters. A smaller context is the longest that fits. plan: raises MemoryPlanError for what does
    not fit, UsageError for what the model cannot do; context: what `options` come to; ceiling: the flag whose bytes are
    planned.
    """
    given: Size | None = getattr(options, ceiling)
    last: RunOptions | None = None
    for changed in _smaller(options, context):
        if changed == options:
            continue
        try:
            plan(changed)
            if changed.ctx_size != options.ctx_size:
                changed = _longest(plan, changed, context)
            return f"; {_flags(options, changed)} would fit"
        except UsageError:
            continue
        except MemoryPlanError:
            last = changed
    if last is None or given is None:
        return ""
    boundless = Size(n_bytes=1 << 60)
    least = plan(dataclasses.replace(last, budget=None, ram=boundless, vram=boundless))
    floor = least.floor_bytes + FLOOR_MARGIN_BYTES
    # where less than what was given would do, the ceiling is not what is wrong
    return f"; with {_flags(options, last)} it needs --{ceiling} {typed(floor)}" if floor > given.n_bytes else ""


def _longest(plan: Callable[[RunOptions], MemoryPlan], fitting: RunOptions, context: int) -> RunOptions:
    """`fitting`, whose context was halved until it fitted, with the longest that fits, in steps of LEAST_CONTEXT, and
    still does when the process weighs a little more next time.
    """
    longest, fits = fitting, fitting.ctx_size // LEAST_CONTEXT if fitting.ctx_size is not None else 0
    too_long = -(-min(2 * (fits + 1) * LEAST_CONTEXT, context) // LEAST_CONTEXT)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        tried = dataclasses.replace(fitting, ctx_size=middle * LEAST_CONTEXT)
        try:
            planned = plan(tried)
            enough = planned.floor_bytes + FLOOR_MARGIN_BYTES <= planned.ceiling_bytes
        except MemoryPlanError:
            enough = False
        if enough:
            longest, fits = tried, middle
        else:
            too_long = middle
    return longest


def _flags(options: RunOptions, changed: RunOptions) -> str:
    """What differs, as a user types it."""
    differing = {flag: name for name, flag in _FLAGS.items() if getattr(changed, name) != getattr(options, name)}
    return " ".join(f"{flag} {getattr(changed, name)}" for flag, name in differing.items())


def _smaller(options: RunOptions, context: int) -> Iterator[RunOptions]:
    """Ever smaller runs, the mildest change first."""
    quantised = dataclasses.replace(options, cache_type_k="q8_0", cache_type_v="q8_0")
    contexts = [context]
    while contexts[-1] // 2 >= LEAST_CONTEXT:
        contexts.append(contexts[-1] // 2)
    if quantised != options:
        yield quantised
    bases = (options, quantised)
    yield from (dataclasses.replace(base, ctx_size=each) for base in bases for each in contexts[1:])
    least, chunk = contexts[-1] if contexts[1:] else options.ctx_size, min(options.ubatch_size, _LEAST_CHUNK)
    yield from (dataclasses.replace(base, ctx_size=least, ubatch_size=chunk) for base in bases)
