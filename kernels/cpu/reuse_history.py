"""The reuse statistics of a layer's experts over many events in one compiled call.

What they are is defined, event by event, by `pearl_cli.predict.reuse_history.ReuseHistory`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def record_all(topk_ids, decay, gap_smoothing, frequency, gap, last_use, clock, features, slowest):
    """Events topk_ids int64 [T, K] in order, the first at clock + 1.

    Mutates frequency float64 [D, E], gap float64 [E], last_use int64 [E]; writes features float32 [T, D + 2, E] (log
    odds of each frequency, log of age + 1 and of gap) and slowest float64 [T, E], the last frequency after each event.
    """
    n_decays, num_experts = frequency.shape
    for t in range(topk_ids.shape[0]):
        clock += 1
        for d in range(n_decays):
            for e in range(num_experts):
                frequency[d, e] *= decay[d]
            for e in topk_ids[t]:
                frequency[d, e] += 1.0 - decay[d]
            for e in range(num_experts):
                value = frequency[d, e]
                features[t, d, e] = math.log((value + 1e-3) / (1.001 - value))
        for e in topk_ids[t]:
            gap[e] += gap_smoothing * (np.float64(clock - last_use[e]) - gap[e])
            last_use[e] = clock
        for e in range(num_experts):
            features[t, n_decays, e] = math.log(1.0 + np.float64(clock - last_use[e]))
            features[t, n_decays + 1, e] = math.log(gap[e])
            slowest[t, e] = frequency[n_decays - 1, e]
