"""Decayed frequencies of use over many events, and the next uses that they let expect, in one compiled call.

What that means is defined by `pearl_cli.predict.ema.EmaFrequency`. Short enough to keep the interpreter lock, see
`kernels.cpu.expert_cache`.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, error_model="numpy")
def next_uses(frequency, topk_ids, decay, smallest):
    """Events topk_ids int32 [T, K] in order: float64 [T, E], one over the frequency after each, that taken as at least
    `smallest`. Mutates frequency float64 [E].
    """
    expected = np.empty((topk_ids.shape[0], frequency.size))
    for t in range(topk_ids.shape[0]):
        for e in range(frequency.size):
            frequency[e] *= decay
        for e in topk_ids[t]:
            frequency[e] += 1.0 - decay
        for e in range(frequency.size):
            expected[t, e] = 1.0 / max(frequency[e], smallest)
    return expected
