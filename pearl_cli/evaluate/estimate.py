"""Means with standard errors that respect dependence: neighbouring tokens of a text are not independent draws.

Tokens are grouped into blocks of neighbours. The variance of a mean is that of the blocks' sums (the cluster-robust
estimator), its interval Student's t with blocks - 1 degrees of freedom. A paired comparison is the same over the
differences token by token, so what two settings share cancels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

BLOCK_TOKENS = 64
# Two-sided 95 % points of Student's t for 1 .. 30 degrees of freedom, then the normal's.
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL_95 = 1.960


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, its standard error, and its 95 % interval. NaN errors where a single block gives none."""

    value: float
    standard_error: float
    low: float
    high: float

    def record(self) -> dict[str, float | None]:
        """For JSON, which has no NaN."""
        parts = {"value": self.value, "standard_error": self.standard_error, "low": self.low, "high": self.high}
        return {name: None if math.isnan(part) else part for name, part in parts.items()}


def mean_estimate(values: np.ndarray, blocks: np.ndarray) -> Estimate:
    """values float64 [N]; blocks int [N], equal for tokens of one block."""
    mean = float(values.mean())
    _, block_of = np.unique(blocks, return_inverse=True)
    sums = np.bincount(block_of, weights=values - mean)
    n_blocks = sums.size
    if n_blocks < 2:
        return Estimate(mean, math.nan, math.nan, math.nan)
    error = math.sqrt(float((sums**2).sum()) * n_blocks / (n_blocks - 1)) / values.size
    reach = error * (_T_95[n_blocks - 2] if n_blocks - 2 < len(_T_95) else _NORMAL_95)
    return Estimate(mean, error, mean - reach, mean + reach)


def exp_estimate(log: Estimate, minus_one: bool = False) -> Estimate:
    """exp (or exp - 1) of an estimated logarithm: interval mapped end by end, error to first order."""
    shift = 1.0 if minus_one else 0.0
    value = math.exp(log.value)
    ends = (math.exp(end) - shift if not math.isnan(end) else math.nan for end in (log.low, log.high))
    return Estimate(value - shift, value * log.standard_error, *ends)
