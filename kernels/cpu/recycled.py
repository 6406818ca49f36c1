"""Arrays of a decoded token, handed out again as soon as nobody holds them: no memory is allocated while decoding.

An op's result is the caller's for as long as it keeps it, as a fresh array's would be; who holds what is read from
Python's own reference counts, which views raise too. Rows of prompts are plain fresh arrays: they are large, and of as
many sizes as prompts.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount

import numpy as np

KEPT = 12
"""Arrays of one shape that are kept at most. A token of gemma4 has seven of one shape in use at once, others have
five at most.
"""

MAX_SHAPES = 512


def _next(pool: deque[np.ndarray]) -> tuple[np.ndarray, int]:
    """The oldest array, taken out of its pool, and its references as counted here. Raises IndexError."""
    array = pool.popleft()
    return array, getrefcount(array)


_ALONE = _next(deque([np.empty(1, np.uint8)]))[1]
"""The count of an array that nobody else holds: how many `_next` itself has differs from Python to Python."""


class Recycled:
    """Uninitialised C-contiguous arrays of one dtype. Threads may share it: an array is taken out of its pool before it
    is looked at.
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = dtype
        self._pools: dict[tuple[int, ...], deque[np.ndarray]] = {}

    def take(self, *shape: int) -> np.ndarray:
        """An array of `shape` that nobody else holds."""
        pool = self._pools.get(shape)
        if pool is None:
            if len(self._pools) >= MAX_SHAPES:
                self._pools.clear()
            pool = self._pools[shape] = deque(maxlen=KEPT)
        try:
            for _ in range(len(pool)):
                array, references = _next(pool)
                pool.append(array)
                if references == _ALONE:
                    return array
        except IndexError:  # another thread is looking at the last one
            pass
        array = np.empty(shape, self.dtype)
        pool.append(array)
        return array

    def clear(self) -> None:
        """Keep nothing."""
        self._pools.clear()


FLOATS = Recycled(np.float32)
OCTETS = Recycled(np.uint8)


def new_rows(n_rows: int, width: int) -> np.ndarray:
    """Uninitialised float32 [n_rows, width]; a single row is recycled."""
    return FLOATS.take(1, width) if n_rows == 1 else np.empty((n_rows, width), np.float32)


def copy_of(rows: np.ndarray) -> np.ndarray:
    """A C-contiguous float32 copy of rows [T, N]; a single row is recycled."""
    out = new_rows(*rows.shape)
    out[:] = rows
    return out

