"""The trace of --usage: recorded routing that a run goes by, for what static eviction pins and for an uneven split.

Not the saved profile of earlier sessions, which `residency.usage_profile` keeps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from models.config import ModelConfig
from models.errors import UsageError
from pearl_cli.flag_files import file_of
from pearl_cli.options import RunOptions
from pearl_cli.residency.uneven_split import Split
from pearl_cli.trace import RouteTrace, read_trace


def is_idle(options: RunOptions) -> bool:
    """Whether there is a --usage that nothing goes by."""
    return options.usage is not None and options.evict != "static" and options.split != "uneven"


def without_idle_usage(options: RunOptions) -> RunOptions:
    """For runs of several settings, of which not every one goes by the trace."""
    return dataclasses.replace(options, usage=None) if is_idle(options) else options


def usage_trace(
    options: RunOptions, config: ModelConfig, notify: Callable[[str], None] | None = None
) -> RouteTrace | None:
    """The trace of --usage, None without the flag. Raises UsageError for one of another shape than the model, and where
    the flags need one that is not given; FileError.
    """
    if options.usage is None:
        if options.split == "uneven":
            raise UsageError("--split uneven goes by recorded routing: give one of this model (pearl trace) as --usage")
        return None
    with file_of("--usage"):
        trace = read_trace(options.usage)
    shape, model = (trace.num_layers, trace.num_experts), (config.num_layers, config.router.num_experts)
    if shape != model:
        fault = f"{shape[0]} layers of {shape[1]} experts, the model {model[0]} of {model[1]}"
        raise UsageError(f"--usage {options.usage}: the trace has {fault}; give a trace of this model")
    if is_idle(options) and notify is not None:
        notify("--usage has no effect: it is what --evict static and --split uneven go by")
    return trace


def split_of(options: RunOptions, trace: RouteTrace | None) -> Split | None:
    """How --split divides the budget over layers; None for evenly."""
    return Split.of_trace(trace) if options.split == "uneven" and trace is not None else None
