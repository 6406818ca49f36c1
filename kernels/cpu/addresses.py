"""Addresses of arrays inside numba code, as signed integers: numba turns a sum of uint64 and int64 into a float."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, inline="always")
def address(array):
    """int64 address of the first element."""
    return np.int64(array.ctypes.data)


@njit(nogil=True, cache=True, inline="always")
def aligned_address(array):
    """The first multiple of 64 in `array`'s memory."""
    return (np.int64(array.ctypes.data) + 63) // 64 * 64
