"""How good a forecast is: recall of the true set, and the gap between what it says and what happens."""

from __future__ import annotations

import numpy as np


def recall(probabilities: np.ndarray, labels: np.ndarray, num_fetched: int) -> float:
    """Share of used experts among the `num_fetched` likeliest; both [N, E], rows with NaN labels are left out."""
    valid = ~np.isnan(labels[:, 0])
    top = np.argpartition(-probabilities[valid], num_fetched - 1, axis=1)[:, :num_fetched]
    used = labels[valid]
    total = used.sum()
    return float(np.take_along_axis(used, top, axis=1).sum() / total) if total else 0.0


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, num_bins: int = 10) -> float:
    """Mean over (token, expert) pairs of |mean forecast - rate of use| in their bin of equal width."""
    valid = ~np.isnan(labels)
    p, y = probabilities[valid].astype(np.float64), labels[valid].astype(np.float64)
    if not p.size:
        return 0.0
    bins = np.minimum((p * num_bins).astype(np.int64), num_bins - 1)
    confidence, happened = np.bincount(bins, p, num_bins), np.bincount(bins, y, num_bins)
    return float(np.abs(confidence - happened).sum() / p.size)
