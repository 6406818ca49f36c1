"""RMS norm, over whole rows and over the heads inside a row."""

from __future__ import annotations

import numpy as np


def norm_ref(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis: float64, the shape of x."""
    x64 = x.astype(np.float64)
    return np.asarray(x64 / np.sqrt(np.mean(x64 * x64, axis=-1, keepdims=True) + eps) * weight)


def layer_norm_ref(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis: float64, the shape of x."""
    x64 = x.astype(np.float64)
    return np.asarray(norm_ref(x64 - x64.mean(axis=-1, keepdims=True), weight, eps) + bias)


def head_norm_ref(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """`norm_ref` over each run of len(weight) in the rows of x [T, n * len(weight)]: float64, the shape of x.

    len(weight) = head width: a norm per head (Qwen3); len(weight) = row width: one norm over all heads (OLMoE).
    """
    return norm_ref(x.reshape(x.shape[0], -1, weight.shape[0]), weight, eps).reshape(x.shape)
