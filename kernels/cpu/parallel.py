"""Threads of the compiled kernels: how many, and on which layer. Results never depend on any of it.

Every parallel kernel splits its rows statically into `num_threads()` parts. The OpenMP layer is preferred (a region
costs a few microseconds); without libgomp numba's own work queue is used, and `layer_name()` says so.
"""

from __future__ import annotations

import importlib
import os

import numba

_threads = 0
_SPINS = "30000"
"""How often an idle OpenMP thread looks for work before it sleeps: some half millisecond, longer than any gap between
two kernels of a decode step. Waking a sleeper costs more than it saves: on two busy cores a decode step (OLMoE shape,
Q4_K) took 45 ms with 3000, 38 with 30000, 36 with 300000; passive waiting took 44 where 30000 took 27. libgomp's own
choice, some milliseconds, keeps a core from reader threads for longer than a read takes."""


def _choose_layer() -> str:
    if "OMP_WAIT_POLICY" not in os.environ:  # libgomp reads these once, when it is loaded
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:
        return "workqueue"
    return "omp"


numba.config.THREADING_LAYER = _choose_layer()


def layer_name() -> str:
    """The threading layer in use: "omp" or "workqueue"."""
    return str(numba.config.THREADING_LAYER)


def max_threads() -> int:
    """The most threads that set_threads takes: the cores this process may use, or NUMBA_NUM_THREADS."""
    return int(numba.config.NUMBA_NUM_THREADS)


def set_threads(n: int) -> None:
    """Use n threads in every kernel called from this thread on. Raises ValueError outside 1..max_threads()."""
    global _threads
    if not 1 <= n <= max_threads():
        raise ValueError(f"{n} threads: this process may use 1 to {max_threads()}")
    numba.set_num_threads(n)
    _threads = n


def num_threads() -> int:
    """Threads of the kernels; all that there are until set_threads is called."""
    if not _threads:
        set_threads(max_threads())
    return _threads
