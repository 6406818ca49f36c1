"""From probabilities of use at the next K events to the expected number of events until the next use."""

from __future__ import annotations

import numpy as np


def expected_next_use(probabilities: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Expected events until the next use, float64 [..., E].

    probabilities [..., K, E]: chance of use at event k = 1..K, taken as independent; tail [..., E]: events to wait
    beyond K once nothing happened within it.
    sum_k k p_k prod_{j<k} (1 - p_j) + (K + tail) prod_j (1 - p_j), which is 1 + S_1 + .. + S_{K-1} + tail S_K with the
    chance S_k = prod_{j<=k} (1 - p_j) that nothing happens within k.
    """
    silent = np.cumprod(1.0 - probabilities.astype(np.float64), axis=-2)
    result: np.ndarray = 1.0 + silent[..., :-1, :].sum(axis=-2) + tail * silent[..., -1, :]
    return result
