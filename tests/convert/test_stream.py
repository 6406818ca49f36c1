"""Jobs run on threads come back in order, few at a time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from convert.stream import Job, in_order


def test_results_keep_their_order() -> None:
    def job(number: int) -> Job:
        def make() -> np.ndarray:
            time.sleep(0.002 * (number % 3))
            return np.array([number], np.uint8)

        return make

    assert [int(out[0]) for out in in_order((job(n) for n in range(40)), threads=4)] == list(range(40))


def test_only_a_few_jobs_are_started_ahead() -> None:
    started = 0
    lock = threading.Lock()

    def make() -> np.ndarray:
        nonlocal started
        with lock:
            started += 1
        return np.zeros(1, np.uint8)

    for taken, _ in enumerate(in_order((make for _ in range(100)), threads=2), start=1):
        assert started <= taken + 2 + 2


def test_a_jobs_error_comes_in_its_turn() -> None:
    def bad() -> np.ndarray:
        raise KeyError("job 3")

    jobs: list[Job] = [lambda: np.zeros(1, np.uint8)] * 3 + [bad]

    with pytest.raises(KeyError, match="job 3"):
        list(in_order(jobs, threads=2))
    results = in_order(jobs, threads=2)
    assert len([next(results) for _ in range(3)]) == 3
    results.close()
