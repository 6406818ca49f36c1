"""Which cores the compiled kernels' threads run on: any of a set, or each on one core of its own.

Binding is by the operating system's `sched_setaffinity` (Linux); elsewhere `available` says no. It never changes a
result: work is split by the number of threads alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numba import njit, prange

from kernels.cpu import parallel
from kernels.cpu.native_call import call_native

_MASK_WORDS = 64
"""int64 words of a mask: 4096 cores."""

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def available() -> bool:
    """Whether threads can be bound here: the system call exists, and a kernel's part i is always run by thread i."""
    return hasattr(os, "sched_setaffinity") and parallel.layer_name() == "omp"


def siblings_of(core: int) -> str:
    """What names the physical core that logical `core` is part of; itself where the system does not say."""
    try:
        return Path(_TOPOLOGY.format(core)).read_text().strip()
    except OSError:
        return str(core)


def one_core_each(threads: int, cores: Iterable[int], sibling: Callable[[int], str] = siblings_of) -> list[int]:
    """`threads` different ones of `cores`: first one of each physical core, then the others, in ascending order.

    Raises ValueError where there are too few.
    """
    ordered, seen = sorted(set(cores)), set()
    first: list[int] = []
    second: list[int] = []
    for core in ordered:
        name = sibling(core)
        (second if name in seen else first).append(core)
        seen.add(name)
    if len(ordered) < threads:
        raise ValueError(f"{threads} threads, one a core, on {len(ordered)} cores")
    return (first + second)[:threads]


@njit(nogil=True, cache=True, parallel=True)
def _bind(function, masks, n_bytes):
    for i in prange(masks.shape[0]):
        call_native(function, np.int64(0), n_bytes, np.int64(masks[i].ctypes.data))


def bind(cores_of_thread: Sequence[Iterable[int]]) -> None:
    """Let kernel thread i run on cores_of_thread[i] only; thread 0 is the one that calls.

    Threads that the caller starts later inherit its cores, so start those first that should run elsewhere. Raises
    ValueError for a number of sets other than `parallel.num_threads()`, OSError where binding is not available or the
    system refuses these cores.
    """
    if not available():
        raise OSError("threads cannot be bound to cores on this system")
    if len(cores_of_thread) != parallel.num_threads():
        raise ValueError(f"cores for {len(cores_of_thread)} threads, {parallel.num_threads()} compute")
    masks = np.zeros((len(cores_of_thread), _MASK_WORDS), np.uint64)
    for mask, cores in zip(masks, cores_of_thread, strict=True):
        for core in cores:
            mask[core // 64] |= np.uint64(1 << core % 64)
    function = ctypes.cast(ctypes.CDLL(None).sched_setaffinity, ctypes.c_void_p).value
    _bind(function, masks, masks.shape[1] * 8)
    if os.sched_getaffinity(0) != set(cores_of_thread[0]):
        raise OSError(f"the system did not bind a thread to cores {sorted(cores_of_thread[0])}")
