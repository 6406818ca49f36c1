"""-t means so many threads: each parallel region has as many parts, part i always runs on thread i, and another thread
never takes it over.
"""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba import njit, prange

from kernels.cpu import parallel


@njit(parallel=True, nogil=True)
def _who(seen, rounds):
    for part in prange(seen.shape[0]):
        for _ in range(rounds * (part + 1)):  # parts of different length: a dynamic schedule would move them
            seen[part] = numba.get_thread_id()


@pytest.mark.skipif(parallel.layer_name() != "omp", reason="numba's own queue gives parts to whoever is free")
@pytest.mark.parametrize("threads", sorted({1, parallel.max_threads()}))
def test_part_i_runs_on_thread_i(threads: int) -> None:
    before = parallel.num_threads()
    try:
        parallel.set_threads(threads)
        for _ in range(200):
            seen = np.full(threads, -1, np.int64)
            _who(seen, 50)
            np.testing.assert_array_equal(seen, np.arange(threads))
    finally:
        parallel.set_threads(before)
