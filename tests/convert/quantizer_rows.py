"""Rows that quantisers are compared with ggml on, the same on every machine, and what ggml minimises on them."""

from __future__ import annotations

import numpy as np

from kernels.quant_types import QuantType as Q

BLOCK = 32
_LEGACY = (Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1)


def odd_blocks() -> dict[str, np.ndarray]:
    """Blocks of 32 float32 that trip quantisers: nothing but sums and products of small numbers makes them."""
    count = np.arange(BLOCK, dtype=np.float32)
    alternating = np.where(count % 2, np.float32(-1), np.float32(1))
    one = np.zeros(BLOCK, np.float32)
    blocks = {
        "zeros": one,
        "negative zeros": -one,
        "constant": one + np.float32(0.3),
        "negative constant": one - np.float32(0.25),
        "ascending": count - 16,
        "halves": (count - 16) / 2,  # of the largest's steps: ties wherever a code is rounded
        "ties of 127": np.where(count == 0, 127, count - np.float32(15.5)),
        "ties of the table": np.array([-127, 113, *np.arange(-115.5, 115, 8.25), -4.5, 7.0])[:BLOCK],
        "one alone": np.where(count == 5, np.float32(-2.5), one),
        "one huge": np.where(count == 31, np.float32(3e5), alternating * count / 32),
        "two as large": np.where(count < 2, alternating * 4, count / 32),
        "denormal": alternating * (count + 1) * np.float32(1e-40),
        "below half precision": alternating * (count + 1) * np.float32(3e-9),
        "half precision's denormals": alternating * (count + 1) * np.float32(2e-6),
        "large": alternating * (count + 1) * np.float32(1000),
    }
    return {name: np.asarray(block, np.float32) for name, block in blocks.items()}


def mixed_rows(n_rows: int, n_cols: int) -> np.ndarray:
    """float32 [n_rows, n_cols] with heavy tails, from whole numbers by exact arithmetic."""
    mixed = np.arange(n_rows * n_cols * 3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(n_cols)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    uniform = (mixed >> np.uint64(48)).astype(np.float64) / 2**15 - 1  # multiples of 2^-15
    middle = uniform.reshape(-1, 3).sum(axis=1)
    return np.asarray(middle * middle * middle / 64, np.float32).reshape(n_rows, n_cols)


def mixed_importance(n_cols: int) -> np.ndarray:
    """float32 [n_cols], above 0."""
    return np.asarray(np.abs(mixed_rows(1, n_cols)[0]) + np.float32(2**-10), np.float32)


def distributions(n_rows: int = 32, n_cols: int = 1024) -> dict[str, np.ndarray]:
    """float32 [n_rows, n_cols] of many shapes. `RandomState` keeps its streams over versions of numpy."""
    rng, size = np.random.RandomState(5), (n_rows, n_cols)
    drawn = {
        "normal": rng.standard_normal(size),
        "student 3": rng.standard_t(3, size),
        "student 5": rng.standard_t(5, size) * 0.02,
        "uniform": rng.uniform(-1, 1, size),
        "laplace": rng.laplace(size=size),
        "off centre": rng.standard_normal(size) + 2,
        "one sign": -np.abs(rng.standard_normal(size)),
        "sparse": rng.standard_normal(size) * (rng.uniform(size=size) < 0.1),
        "whole numbers": np.round(rng.standard_normal(size) * 3),
        "lognormal": rng.lognormal(size=size) * np.where(rng.uniform(size=size) < 0.5, -1, 1),
    }
    return {name: values.astype(np.float32) for name, values in drawn.items()}


def matrices(n_cols: int = 1024) -> dict[str, np.ndarray | None]:
    """Importances float32 [n_cols], from none to one in which a few columns are all that counts."""
    rng = np.random.RandomState(6)
    heavy = np.clip(rng.standard_cauchy(n_cols) ** 2 + 1e-3, 0, 1e4)
    drawn = {"exponential": rng.exponential(size=n_cols), "chi squared": rng.chisquare(1, n_cols), "heavy": heavy}
    return {"none": None, **{name: (values + 1e-6).astype(np.float32) for name, values in drawn.items()}}


def counts(x: np.ndarray, quant_type: Q, importance: np.ndarray | None) -> np.ndarray:
    """How much ggml's search for `quant_type` lets each weight count, float64 as `x`."""
    wide = x.astype(np.float64)
    if importance is None:
        if quant_type in (Q.Q4_K, Q.Q5_K):
            parts = wide.reshape(-1, BLOCK)
            return (np.sqrt((parts**2).mean(axis=1, keepdims=True)) + np.abs(parts)).reshape(x.shape)
        return np.abs(wide) if quant_type is Q.Q2_K else wide**2
    if quant_type is Q.Q6_K:
        return np.broadcast_to(importance.astype(np.float64), x.shape)
    around = x.shape[1] if quant_type in _LEGACY else 256
    parts = wide.reshape(-1, around)
    squares = (parts**2).mean(axis=1, keepdims=True) * (1 if quant_type in (Q.Q2_K, *_LEGACY) else 2)
    return np.asarray(np.sqrt(squares + parts**2).reshape(x.shape) * importance)


def weighted_error(x: np.ndarray, back: np.ndarray, weight: np.ndarray) -> float:
    """Root of the weighted mean square error of `back`, over that of `x` itself."""
    gap = back.astype(np.float64) - x
    return float(np.sqrt((weight * gap**2).sum() / (weight * x.astype(np.float64) ** 2).sum()))
