"""SparseMixer's routing (see `RouterSpec`) in plain torch operations: one model uses it, with sixteen experts."""

from __future__ import annotations

import torch

from kernels.router_spec import RouterSpec


def route(
    router_logits: torch.Tensor, spec: RouterSpec, selection_bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(topk_ids int32 [T, K], topk_weights float32 [T, K]) on the device of router_logits [T, E], ids -1 for a token
    with a NaN logit. float64 inside, as the other forms.
    """
    logits = router_logits.double()
    selection = logits if selection_bias is None else logits + selection_bias
    topk_ids = torch.argsort(-selection, dim=-1, stable=True)[:, : spec.num_experts_per_tok]
    left, weights = logits.clone(), []
    for k in range(spec.num_experts_per_tok):
        chosen = topk_ids[:, k : k + 1]
        best = left.amax(dim=-1, keepdim=True)
        near = (best - left) / torch.maximum(logits.abs(), best) <= spec.mixer_threshold
        shares = torch.where(near.scatter(1, chosen, True), torch.exp(left - best), 0.0)
        weights.append(shares.gather(1, chosen) / shares.sum(dim=-1, keepdim=True))
        left = left.scatter(1, chosen, -torch.inf)
    broken = logits.isnan().any(dim=-1, keepdim=True)
    ids = torch.where(broken, -1, topk_ids).to(torch.int32)
    return ids, (torch.cat(weights, dim=1) * spec.scale).float()
