"""From probabilities of use at the next K events to the expected number of events until the next use."""

from __future__ import annotations

import numpy as np


def expected_next_use(probabilities: np.ndarray, tail: np.ndarray, work: np.ndarray | None = None) -> np.ndarray:
    """Expected events until the next use, fresh float64 [..., E]; `work`: float64 of the shape of `probabilities`.

    probabilities [..., K, E]: chance of use at event k = 1..K, taken as independent; tail [..., E]: events to wait
    beyond K once nothing happened within it.
    sum_k k p_k prod_{j<k} (1 - p_j) + (K + tail) prod_j (1 - p_j), which is 1 + S_1 + .. + S_{K-1} + tail S_K with the
    chance S_k = prod_{j<=k} (1 - p_j) that nothing happens within k.
    """
    silent = np.empty(probabilities.shape) if work is None else work
    silent[...] = probabilities
    np.subtract(1.0, silent, out=silent)
    np.cumprod(silent, axis=-2, out=silent)
    result: np.ndarray = 1.0 + silent[..., :-1, :].sum(axis=-2) + tail * silent[..., -1, :]
    return result
