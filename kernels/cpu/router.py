"""From router logits to experts and mixing weights in one compiled call, every rule of `RouterSpec`."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from kernels.backend import NotNumbersError
from kernels.router_spec import RouterSpec

_GATINGS = {"softmax": 0, "sigmoid": 1, "softmax_topk": 2, "sparsemixer": 3}
_NO_BIAS = np.zeros(0, np.float32)


@njit(nogil=True, cache=True, error_model="numpy")
def _scores(logits, gating, scores):
    if gating == 0:
        _softmax(logits, scores)
        return
    for e in range(logits.shape[0]):
        logit = np.float64(logits[e])
        # Two forms so that exp never overflows and a score near 0 keeps its digits.
        if gating >= 2:
            scores[e] = logit
        elif logit >= 0:
            scores[e] = 1.0 / (1.0 + math.exp(-logit))
        else:
            scores[e] = math.exp(logit) / (1.0 + math.exp(logit))


@njit(nogil=True, cache=True, error_model="numpy")
def _softmax(x, out):
    largest = -np.inf
    for e in range(x.shape[0]):
        largest = max(largest, np.float64(x[e]))
    total = 0.0
    for e in range(x.shape[0]):
        out[e] = math.exp(np.float64(x[e]) - largest)
        total += out[e]
    for e in range(x.shape[0]):
        out[e] /= total


@njit(nogil=True, cache=True)
def _arg_max(values):
    """Index of the largest value, the first of equals; NaN never wins, -inf can."""
    best = -1
    for i in range(values.shape[0]):
        if not math.isnan(values[i]) and (best < 0 or values[i] > values[best]):
            best = i
    return best


@njit(nogil=True, cache=True)
def _group_score(selection, two_best):
    """The largest selection score of a group, or the sum of its two largest."""
    first, second = -np.inf, -np.inf
    for value in selection:
        if value > first:
            first, second = value, first
        elif value > second:
            second = value
    return first + second if two_best and selection.shape[0] > 1 else first


@njit(nogil=True, cache=True)
def _exclude_groups(selection, num_groups, num_groups_used, two_best):
    """Set the experts outside the best `num_groups_used` groups to -inf."""
    size = selection.shape[0] // num_groups
    group_scores = np.empty(num_groups, np.float64)
    for g in range(num_groups):
        group_scores[g] = _group_score(selection[g * size : (g + 1) * size], two_best)
    used = np.zeros(num_groups, np.bool_)
    for _ in range(num_groups_used):
        best = -1
        for g in range(num_groups):
            if not used[g] and (best < 0 or group_scores[g] > group_scores[best]):
                best = g
        used[best] = True
    for g in range(num_groups):
        if not used[g]:
            for e in range(g * size, (g + 1) * size):
                selection[e] = -np.inf


@njit(nogil=True, cache=True, error_model="numpy")
def _mixer_weights(scores, topk_ids, threshold, left, weights):
    """The share of each chosen expert among those not chosen before it that lie near the best of them."""
    left[:] = scores
    for k in range(topk_ids.shape[0]):
        best, total = -np.inf, 0.0
        for e in range(left.shape[0]):
            best = max(best, left[e])
        for e in range(left.shape[0]):
            near = (best - left[e]) / max(abs(scores[e]), best) <= threshold
            if e == topk_ids[k] or near:
                total += math.exp(left[e] - best)
        weights[k] = math.exp(left[topk_ids[k]] - best) / total
        left[topk_ids[k]] = -np.inf


@njit(nogil=True, cache=True, error_model="numpy")
def _route(logits, bias, gating, normalise, scale, num_groups, num_groups_used, threshold, topk_ids, topk_weights):
    n_tokens, num_experts = logits.shape
    k_experts = topk_ids.shape[1]
    scores = np.empty(num_experts, np.float64)
    selection = np.empty(num_experts, np.float64)
    chosen = np.empty(k_experts, np.float64)
    for t in range(n_tokens):
        _scores(logits[t], gating, scores)
        for e in range(num_experts):
            selection[e] = scores[e] + bias[e] if bias.shape[0] else scores[e]
        if num_groups > 1:
            _exclude_groups(selection, num_groups, num_groups_used, bias.shape[0] > 0)
        for k in range(k_experts):
            e = _arg_max(selection)
            if e < 0:
                return t
            topk_ids[t, k] = e
            chosen[k] = scores[e]
            selection[e] = np.nan
        if gating == 2:
            _softmax(chosen, chosen)
        elif gating == 3:
            _mixer_weights(scores, topk_ids[t], threshold, selection, chosen)
        elif normalise:
            total = 0.0
            for k in range(k_experts):
                total += chosen[k]
            for k in range(k_experts):
                chosen[k] /= total
        for k in range(k_experts):
            topk_weights[t, k] = chosen[k] * scale
    return -1


def route(
    router_logits: np.ndarray, spec: RouterSpec, selection_bias: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(topk_ids int32 [T, K], topk_weights float32 [T, K]) for float32 router_logits [T, E], fresh arrays.

    Scores are float64 inside. Raises ValueError for an unknown gating, NotNumbersError for logits that are not numbers.
    """
    if spec.gating not in _GATINGS:
        raise ValueError(f"router gating {spec.gating!r}; there are {', '.join(_GATINGS)}")
    shape = (router_logits.shape[0], spec.num_experts_per_tok)
    topk_ids, topk_weights = np.empty(shape, np.int32), np.empty(shape, np.float32)
    bias = _NO_BIAS if selection_bias is None else selection_bias
    gating, groups = _GATINGS[spec.gating], (spec.num_groups, spec.num_groups_used, spec.mixer_threshold)
    failed = _route(router_logits, bias, gating, spec.norm_topk_prob, spec.scale, *groups, topk_ids, topk_weights)
    if failed >= 0:
        raise NotNumbersError(f"router logits of token {failed} are not numbers")
    return topk_ids, topk_weights
