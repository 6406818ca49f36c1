"""From router logits to experts and mixing weights: every rule of `RouterSpec`, in float64."""

from __future__ import annotations

import numpy as np

from kernels.router_spec import RouterSpec


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def router_scores_ref(router_logits: np.ndarray, gating: str) -> np.ndarray:
    """Scores [T, E] float64 that the choice is made from. Raises ValueError for an unknown gating."""
    logits = router_logits.astype(np.float64)
    if gating == "softmax":
        return _softmax(logits)
    if gating == "sigmoid":
        return np.exp(-np.logaddexp(0.0, -logits))
    if gating in ("softmax_topk", "sparsemixer"):
        return logits
    raise ValueError(f"router gating {gating!r}; there are softmax, sigmoid, softmax_topk, sparsemixer")


def _exclude_groups(selection: np.ndarray, spec: RouterSpec, biased: bool) -> np.ndarray:
    """selection [T, E] with the experts outside the best `num_groups_used` groups at -inf."""
    n_tokens = selection.shape[0]
    grouped = selection.reshape(n_tokens, spec.num_groups, -1)
    # DeepSeek-V3 ranks a group by its two best biased scores, DeepSeek-V2 by its best score.
    group_scores = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1) if biased else grouped.max(axis=-1)
    best = np.argsort(-group_scores, axis=-1, kind="stable")[:, : spec.num_groups_used]
    kept = np.zeros(group_scores.shape, bool)
    np.put_along_axis(kept, best, True, axis=-1)
    return np.where(kept[..., None], grouped, -np.inf).reshape(n_tokens, -1)


def _mixer_weights(logits: np.ndarray, topk_ids: np.ndarray, threshold: float) -> np.ndarray:
    """SparseMixer's weights in use (arXiv 2409.12136), [T, K]: see `RouterSpec`. One that was chosen counts itself,
    however far it lies behind."""
    weights = np.empty(topk_ids.shape)
    left = logits.copy()
    rows = np.arange(logits.shape[0])
    for k in range(topk_ids.shape[1]):
        chosen, best = topk_ids[:, k], left.max(axis=-1, keepdims=True)
        near = (best - left) / np.maximum(np.abs(logits), best) <= threshold
        near[rows, chosen] = True
        shares = np.where(near, np.exp(left - best), 0.0)
        weights[:, k] = shares[rows, chosen] / shares.sum(axis=-1)
        left[rows, chosen] = -np.inf
    return weights


def route_ref(
    router_logits: np.ndarray, spec: RouterSpec, selection_bias: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(topk_ids int32 [T, K], topk_weights float64 [T, K]) for router_logits [T, E], see `RouterSpec`."""
    scores = router_scores_ref(router_logits, spec.gating)
    selection = scores if selection_bias is None else scores + selection_bias.astype(np.float64)
    if spec.num_groups > 1:
        selection = _exclude_groups(selection, spec, selection_bias is not None)
    topk_ids = np.argsort(-selection, axis=-1, kind="stable")[:, : spec.num_experts_per_tok]
    topk_weights = np.take_along_axis(scores, topk_ids, axis=-1)
    if spec.gating == "softmax_topk":
        topk_weights = _softmax(topk_weights)
    elif spec.gating == "sparsemixer":
        topk_weights = _mixer_weights(scores, topk_ids, spec.mixer_threshold)
    elif spec.norm_topk_prob:
        topk_weights = topk_weights / topk_weights.sum(axis=-1, keepdims=True)
    return topk_ids.astype(np.int32), topk_weights * spec.scale
