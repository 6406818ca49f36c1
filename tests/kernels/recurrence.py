"""Test brick: what holds of every op that carries a state over the rows of a call."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kernels.cpu import parallel


class Recurrence(Protocol):
    """Rows to go over, and the state before them."""

    state: np.ndarray

    def run(self, state: np.ndarray, rows: slice = ...) -> np.ndarray:
        """Outputs of `rows`, all by default; mutates `state`."""
        ...


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def assert_cuts_and_threads_change_nothing(problem: Recurrence, n_tokens: int) -> None:
    """The same bits in one call, and three rows a call on one thread."""
    state, pieces = problem.state.copy(), problem.state.copy()
    whole, used = problem.run(state), parallel.num_threads()
    try:
        parallel.set_threads(1)
        rows = [problem.run(pieces, slice(i, i + 3)) for i in range(0, n_tokens, 3)]
    finally:
        parallel.set_threads(used)
    np.testing.assert_array_equal(np.concatenate(rows), whole)
    np.testing.assert_array_equal(pieces, state)
