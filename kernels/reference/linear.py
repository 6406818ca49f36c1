"""Matrix times activations in float64, and the dense gated feed-forward built from it."""

from __future__ import annotations

import numpy as np

from kernels.backend import Weight
from kernels.reference.dequant import dequantize_weight


def linear_ref(x: np.ndarray, *weights: Weight, bias: np.ndarray | None = None) -> np.ndarray:
    """x [T, D] times each weight's transpose, side by side: float64 [T, sum n_rows]."""
    x64 = x.astype(np.float64)
    out = np.concatenate([x64 @ dequantize_weight(w).astype(np.float64).T for w in weights], axis=1)
    return out if bias is None else out + bias


def silu_ref(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x) elementwise in float64, without overflow for large negative x."""
    x64 = x.astype(np.float64)
    e = np.exp(-np.abs(x64))
    return x64 * np.where(x64 >= 0, 1.0, e) / (1.0 + e)


def gated_mlp_ref(x: np.ndarray, gate: Weight, up: Weight, down: Weight) -> np.ndarray:
    """down(silu(gate x) * up x): float64 [T, D]."""
    return linear_ref(silu_ref(linear_ref(x, gate)) * linear_ref(x, up), down)
