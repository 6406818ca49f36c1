"""Logits of many events recalibrated, one event after the other, in one compiled call.

What that means is defined by `pearl_cli.predict.online_calibration.OnlineCalibration`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, error_model="numpy")
def recalibrate_all(logits, topk_ids, scale, curvature, ring, used, n_seen, fading, prior):
    """Events in order: logits float32 [T, K, E] made right after topk_ids int64 [T, n]; mutated.

    Also mutates scale float64 [K, 2] (slope, offset), curvature float64 [K, 3], ring float32 [K, K, E] of raw logits
    and used float64 [E] (scratch). n_seen: events before these.
    """
    n_events, horizon, num_experts = logits.shape
    for t in range(n_events):
        used[:] = 0.0
        for e in topk_ids[t]:
            used[e] = 1.0
        for k in range(min(horizon, n_seen)):  # made k + 1 events ago, for this one
            raw = ring[(n_seen - k - 1) % horizon, k]
            slope, offset = scale[k, 0], scale[k, 1]
            gradient_slope = gradient_offset = 0.0
            per_slope = per_both = per_offset = 0.0
            for e in range(num_experts):
                z = np.float64(raw[e])
                p = 1.0 / (1.0 + math.exp(-(slope * z + offset)))
                fault, weight = p - used[e], p * (1.0 - p)
                gradient_slope += fault * z
                gradient_offset += fault
                per_slope += weight * z * z
                per_both += weight * z
                per_offset += weight
            c = curvature[k]
            c[0] = fading * c[0] + (1.0 - fading) * prior + per_slope
            c[1] = fading * c[1] + per_both
            c[2] = fading * c[2] + (1.0 - fading) * prior + per_offset
            determinant = c[0] * c[2] - c[1] * c[1]
            scale[k, 0] = slope - (c[2] * gradient_slope - c[1] * gradient_offset) / determinant
            scale[k, 1] = offset - (c[0] * gradient_offset - c[1] * gradient_slope) / determinant
        ring[n_seen % horizon] = logits[t]
        n_seen += 1
        for k in range(horizon):
            for e in range(num_experts):
                logits[t, k, e] = scale[k, 0] * logits[t, k, e] + scale[k, 1]
