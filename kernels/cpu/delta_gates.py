"""What the gated delta rule makes of one token's gates, keys and queries, inside numba code."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from kernels.cpu.float_rows import sum_squares
from kernels.cpu.softplus import softplus
from kernels.delta_rule import DELTA_NORM_EPS

_EPS = np.float32(DELTA_NORM_EPS)


@njit(nogil=True, cache=True)
def rate_of(beta):
    """Sigmoid of the gate: which part of a difference is learned, float32."""
    return np.float32(math.exp(-softplus(-beta)))


@njit(nogil=True, cache=True)
def kept_of(alpha, decay, dt_bias):
    """Which part of the state is kept, float32; decay: -e^A."""
    return np.float32(math.exp(decay * softplus(alpha + dt_bias)))


@njit(nogil=True, cache=True, error_model="numpy")
def unit(row, factor, out):
    """out = row / |row| * factor."""
    scale = np.float32(factor) / np.sqrt(sum_squares(row) + _EPS)
    for i in range(row.shape[0]):
        out[i] = row[i] * scale
