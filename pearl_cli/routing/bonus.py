"""The arithmetic of cache-aware selection: scores that can take a bonus, the choice among them, and mixing weights that
never see the bonus. Pure functions of router logits; no cache here.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kernels.backend import Backend
from kernels.router_spec import RouterSpec

_RANK_STEP = np.float32(2**20)  # dwarfs every score, and K of them are exact in float32


def selection_scores(router_logits: np.ndarray, spec: RouterSpec, selection_bias: np.ndarray | None) -> np.ndarray:
    """What the router ranks experts by, in the units that a bonus is given in: float64 [E] for float32 logits [E].

    Logits where only their order counts (softmax without a selection bias, softmax over the chosen), else score plus
    bias (sigmoid routers and all biased ones).
    """
    logits = router_logits.astype(np.float64)
    if spec.gating == "sigmoid":
        logits = np.exp(-np.logaddexp(0.0, -logits))
    elif spec.gating == "softmax" and selection_bias is not None:
        logits = np.exp(logits - logits.max())
        logits /= logits.sum()
    return logits if selection_bias is None else logits + selection_bias


def exclude_groups(selection: np.ndarray, spec: RouterSpec, biased: bool) -> np.ndarray:
    """`selection` [E] with the experts outside the best groups at -inf, which no bonus lifts: groups are always the
    model's own choice. A group counts as in `RouterSpec`; ties to the smaller group.
    """
    if spec.num_groups <= 1:
        return selection
    grouped = selection.reshape(spec.num_groups, -1)
    scores = np.sort(grouped, axis=1)[:, -2:].sum(axis=1) if biased else grouped.max(axis=1)
    kept = top_k(scores, spec.num_groups_used)
    result = np.full_like(grouped, -np.inf)
    result[kept] = grouped[kept]
    return result.reshape(-1)


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """The k largest of `scores` [E] by descending score, ties to the smaller id: int64 [k]."""
    return np.argsort(-scores, kind="stable")[:k]


def unbiased_weights(
    backend: Backend, router_logits: np.ndarray, spec: RouterSpec, topk_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(topk_ids int32 [1, K], topk_weights float32 [1, K]) of the given experts in the given rank order, weighed by the
    router's own scores of `router_logits` [1, E].

    The backend's own `route` computes them, with a selection bias that leaves it no other choice, so that the same
    experts in the same order weigh the same bits as under exact routing.
    """
    forced = np.zeros(spec.num_experts, np.float32)
    forced[topk_ids] = _RANK_STEP * np.arange(topk_ids.size, 0, -1, dtype=np.float32)
    return backend.route(router_logits, dataclasses.replace(spec, num_groups=1, num_groups_used=1), forced)
