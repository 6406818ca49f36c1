"""Outputs that a gate of the same width weighs: of attention by a sigmoid, of the delta rule by SiLU behind a norm."""

from __future__ import annotations

import numpy as np

from kernels.reference.linear import silu_ref
from kernels.reference.norm import head_norm_ref


def sigmoid_gate_ref(x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """x * sigmoid(gate) elementwise: float64, the shape of x."""
    return np.asarray(x * np.exp(-np.logaddexp(0.0, -gate.astype(np.float64))))


def gated_norm_ref(x: np.ndarray, gate: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """RMS norm by weight [d] over each run of d in the rows of x [T, n * d], times silu(gate): float64, shape of x."""
    return np.asarray(head_norm_ref(x, weight, eps) * silu_ref(gate))
