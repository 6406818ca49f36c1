"""How a layer's router chooses, as every backend's `route` reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """How one layer turns router logits into experts and mixing weights.

    scores = softmax(logits) | sigmoid(logits) | logits ("softmax_topk": softmax over the chosen K only; "sparsemixer":
    the weight of each chosen one is its share of e^logit among the experts not chosen before it that lie within
    `mixer_threshold` of the best of them, measured by (best - logit) / max(|logit|, best));
    selection = scores + selection_bias (bias never enters the weights), limited to the best `num_groups_used` of
    `num_groups` groups (a group's score is the sum of its top two when there is a selection bias, else its maximum;
    excluded groups are -inf); topk_ids = the K best, ties to the smaller id, ordered by descending selection score;
    topk_weights = scores[topk_ids], divided by their sum if `norm_topk_prob`, times `scale`.
    """

    num_experts: int
    num_experts_per_tok: int
    gating: str = "softmax"  # "softmax" | "sigmoid" | "softmax_topk" | "sparsemixer"
    norm_topk_prob: bool = False
    scale: float = 1.0
    num_groups: int = 1
    num_groups_used: int = 1
    mixer_threshold: float = 0.0
