"""`--cpu-mask`, `--cpu-range` and `--cpu-strict`: the cores that a run may use, and one core for each compute thread.

Spelled as in llama.cpp. Nothing is bound unless asked for: two runs bound to the same cores would share them while
others idle, which the system's own placement avoids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from models.errors import UsageError
from pearl_cli.options import RunOptions


@contextmanager
def on_cores(options: RunOptions) -> Iterator[None]:
    """Keep the process to the cores of the flags, and give it back what it had at the end.

    Before the kernels are loaded, so that they count these cores. Raises UsageError for cores that the process may not
    use, and where the system cannot do it.
    """
    chosen = (options.cpu_mask or frozenset()) | (options.cpu_range or frozenset())
    if not chosen:
        yield
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("--cpu-mask and --cpu-range need Linux; leave them out")
    before = os.sched_getaffinity(0)
    if not chosen <= before:
        missing = _missing(chosen - before)
        raise UsageError(f"--cpu-mask, --cpu-range: {missing}; this process may use {_ranges(before)}")
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def bound_threads(options: RunOptions, notify: Callable[[str], None]) -> Iterator[None]:
    """With `--cpu-strict 1`, each compute thread on one core, until the end. Enter it after all other threads were
    started, which stay free. Where it cannot be done, a line says so.
    """
    if options.cpu_strict != "1":
        yield
        return
    from kernels.cpu import affinity, parallel

    if not affinity.available():
        notify("--cpu-strict 1: threads cannot be bound to cores on this system, so they stay free")
        yield
        return
    cores, threads = os.sched_getaffinity(0), parallel.num_threads()
    affinity.bind([{core} for core in affinity.one_core_each(threads, cores)])
    try:
        yield
    finally:
        affinity.bind([cores] * threads)


def within_cores(asked: int, work: str, notify: Callable[[str], None]) -> int:
    """Threads for `-t`: more than the cores that this process may use would only take memory, and are not made."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked > cores:
        notify(f"-t {asked}: this process may use {cores} cores, so {cores} threads {work}")
    return min(asked, cores)


def _missing(cores: frozenset[int]) -> str:
    """The first of them, and how many others there are."""
    first, others = min(cores), len(cores) - 1
    return f"core {first} and {others} more are not there" if others else f"core {first} is not there"


def _ranges(cores: set[int]) -> str:
    """`0-3, 8`: runs of neighbours."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], core]
        else:
            runs.append([core])
    return ", ".join("-".join(map(str, run)) for run in runs)
