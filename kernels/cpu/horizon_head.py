"""What a horizon forecast says after one token, from its network's hidden states on, in one compiled call.

What that means is defined, array by array and for many tokens, by `pearl_cli.predict.horizon.HorizonForecaster`; here
nothing is rounded in another order but for sums. The interpreter lock is kept, see `kernels.cpu.expert_cache`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from kernels.cpu.online_calibration import recalibrate_all
from kernels.cpu.reuse_history import record_all


@njit(cache=True)
def head_logits(h, w2, b2, c, features, logits):
    """logits float32 [1, K, E] = h w2 + b2 + c features. h float32 [1, W], w2 [W, K * E], b2 [K * E], c [K, F],
    features [1, F, E].
    """
    horizon, num_experts = logits.shape[1], logits.shape[2]
    flat = logits.reshape(horizon * num_experts)
    flat[:] = 0.0
    for i in range(h.shape[1]):
        for j in range(flat.size):
            flat[j] += h[0, i] * w2[i, j]
    for j in range(flat.size):
        flat[j] += b2[j]
    for k in range(horizon):
        for f in range(c.shape[1]):
            for e in range(num_experts):
                logits[0, k, e] += c[k, f] * features[0, f, e]


@njit(cache=True)
def sigmoids(z):
    """1 / (1 + exp(-z)) in place, float32 [1, K, E]; z beyond 30 is cut."""
    flat = z.reshape(z.size)
    for j in range(flat.size):
        cut = min(max(flat[j], np.float32(-30.0)), np.float32(30.0))
        flat[j] = np.float32(1.0) / (np.float32(1.0) + math.exp(-cut))


@njit(cache=True, error_model="numpy")
def expected_uses(probabilities, frequency, smallest_rate, expected):
    """expected float64 [1, E]: events until the next use. probabilities float32 [1, K, E], frequency float64 [1, E];
    beyond K the rate is the mean of the last probability and the frequency, at least `smallest_rate`.
    """
    horizon = probabilities.shape[1]
    for e in range(frequency.shape[1]):
        silent, events = 1.0, 1.0
        for k in range(horizon):
            silent *= 1.0 - np.float64(probabilities[0, k, e])
            if k < horizon - 1:
                events += silent
        rate = 0.5 * (np.float64(probabilities[0, horizon - 1, e]) + frequency[0, e])
        expected[0, e] = events + silent / max(rate, smallest_rate)


@njit(cache=True)
def forecast_one(
    h, w2, b2, c, topk_ids, decay, gap_smoothing, use_frequency, gap, last_use, clock, recalibrates, scale, curvature,
    ring, used, n_seen, fading, prior, smallest_rate, features, probabilities, frequency, expected,
):  # fmt: skip
    """One event topk_ids int64 [1, n] of a layer whose network has the states h float32 [1, W]: the reuse statistics as
    in `record_all`, logits as in `head_logits`, corrected as in `recalibrate_all` where `recalibrates`, probabilities
    as in `sigmoids`, next uses as in `expected_uses`.

    Mutates what those mutate; writes features float32 [1, F, E], probabilities float32 [1, K, E], frequency (the
    slowest) and expected float64 [1, E].
    """
    record_all(topk_ids, decay, gap_smoothing, use_frequency, gap, last_use, clock, features, frequency)
    head_logits(h, w2, b2, c, features, probabilities)
    if recalibrates:
        recalibrate_all(probabilities, topk_ids, scale, curvature, ring, used, n_seen, fading, prior)
    sigmoids(probabilities)
    expected_uses(probabilities, frequency, smallest_rate, expected)
