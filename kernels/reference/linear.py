"""Matrix times activations in float64, and the dense gated feed-forward built from it."""

from __future__ import annotations

import numpy as np

from kernels.backend import SILU, GatedUnit, Weight
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


def gated_unit_ref(gate: np.ndarray, up: np.ndarray, unit: GatedUnit) -> np.ndarray:
    """The two halves of a feed-forward joined as `unit` says, elementwise in float64. Raises ValueError for an unknown
    kind.
    """
    gate64, up64 = gate.astype(np.float64), up.astype(np.float64)
    if unit.kind == "silu":
        return silu_ref(gate64) * up64
    if unit.kind == "gelu":
        inner = np.sqrt(2.0 / np.pi) * (gate64 + 0.044715 * gate64**3)
        return np.asarray(gate64 * 0.5 * (1.0 + np.tanh(inner)) * up64)
    if unit.kind == "clamped":
        low = np.minimum(gate64, unit.limit)
        return np.asarray(silu_ref(unit.alpha * low) / unit.alpha * (np.clip(up64, -unit.limit, unit.limit) + 1.0))
    raise ValueError(f"gated unit {unit.kind!r}; there are silu, gelu, clamped")


def gated_mlp_ref(x: np.ndarray, gate: Weight, up: Weight, down: Weight, unit: GatedUnit = SILU) -> np.ndarray:
    """down(unit(gate x, up x)): float64 [T, D]."""
    return linear_ref(gated_unit_ref(linear_ref(x, gate), linear_ref(x, up), unit), down)
