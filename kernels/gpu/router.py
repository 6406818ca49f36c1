"""Router logits to experts and mixing weights, every rule of `RouterSpec`: one program a token, results on the device.

Selection is by comparison, never by sorting: the largest score of those left, and of equals the smallest id. Without a
selection bias and groups it compares the logits themselves, since scores rise with them and would round away a
difference.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.sigmoid import sigmoid
from kernels.gpu.tiling import next_power_of_two
from kernels.gpu.workspace import Fresh
from kernels.router_spec import RouterSpec

GATINGS = {"softmax": 0, "sigmoid": 1, "softmax_topk": 2}


@triton.jit
def _best(values, taken, ids):
    """The id of the largest of the `values` that are not `taken`, the smallest of equals; -inf can win."""
    open_values = tl.where(taken != 0, -float("inf"), values)
    best = tl.max(open_values)
    return tl.min(tl.where((open_values == best) & (taken == 0), ids, 1 << 30))


@triton.jit
def _excluded(selection, size, valid, NUM_GROUPS: tl.constexpr, USED: tl.constexpr, TWO_BEST: tl.constexpr,
              BLOCK_G: tl.constexpr):  # fmt: skip
    """int1 [BLOCK_G, BLOCK_S]: the experts outside the best USED groups of the rows of `selection`."""
    first = tl.max(selection, axis=1)
    score = first
    if TWO_BEST:
        column = tl.arange(0, selection.shape[1])[None, :]
        at = tl.min(tl.where(selection == first[:, None], column, 1 << 30), axis=1)
        second = tl.max(tl.where(column == at[:, None], -float("inf"), selection), axis=1)
        score += tl.where(size > 1, second, 0.0)
    group = tl.arange(0, BLOCK_G)
    taken = (group >= NUM_GROUPS).to(tl.int32)
    kept = tl.zeros((BLOCK_G,), tl.int32)
    for _ in tl.static_range(USED):
        g = _best(score, taken, group)
        taken = tl.where(group == g, 1, taken)
        kept = tl.where(group == g, 1, kept)
    return (kept == 0)[:, None] & valid


@triton.jit
def _router_kernel(
    logits_ptr, bias_ptr, ids_ptr, weights_ptr, num_experts, scale, stride_logits,
    K: tl.constexpr, GATING: tl.constexpr, NORMALISE: tl.constexpr, HAS_BIAS: tl.constexpr,
    NUM_GROUPS: tl.constexpr, GROUPS_USED: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Program (t). Experts lie as [group, place in it]; a token with a NaN logit gets ids of -1."""
    t = tl.program_id(0).to(tl.int64)
    size = num_experts // NUM_GROUPS
    group, place = tl.arange(0, BLOCK_G)[:, None], tl.arange(0, BLOCK_S)[None, :]
    ids, valid = group * size + place, (group < NUM_GROUPS) & (place < size)
    logits = tl.load(logits_ptr + t * stride_logits + ids, mask=valid, other=-float("inf"))
    broken = tl.max((logits != logits).to(tl.int32)) > 0
    if GATING == 0:
        e = tl.where(valid, tl.exp(logits - tl.max(logits)), 0.0)
        scores = e / tl.sum(e)
    elif GATING == 1:
        scores = sigmoid(logits)
    else:
        scores = logits
    selection = logits
    if HAS_BIAS or NUM_GROUPS > 1:
        selection = scores
        if HAS_BIAS:
            selection += tl.load(bias_ptr + ids, mask=valid, other=0.0)
        selection = tl.where(valid, selection, -float("inf"))
    if NUM_GROUPS > 1:
        out = _excluded(selection, size, valid, NUM_GROUPS, GROUPS_USED, HAS_BIAS, BLOCK_G)
        selection = tl.where(out, -float("inf"), selection)
    taken = (valid == 0).to(tl.int32)
    rank = tl.arange(0, BLOCK_K)
    topk_ids = tl.full((BLOCK_K,), -1, tl.int32)
    topk_weights = tl.full((BLOCK_K,), -float("inf"), tl.float32)
    for k in tl.static_range(K):
        best = _best(selection, taken, ids)
        taken = tl.where(ids == best, 1, taken)
        weight = tl.sum(tl.where((ids == best) & valid, scores, 0.0))
        topk_ids = tl.where(rank == k, tl.where(broken, -1, best), topk_ids)
        topk_weights = tl.where(rank == k, weight, topk_weights)
    chosen = rank < K
    if GATING == 2:
        topk_weights = tl.where(chosen, tl.exp(topk_weights - tl.max(topk_weights)), 0.0)
        topk_weights = topk_weights / tl.sum(topk_weights)
    elif NORMALISE:
        topk_weights = topk_weights / tl.sum(tl.where(chosen, topk_weights, 0.0))
    tl.store(ids_ptr + t * K + rank, topk_ids, mask=chosen)
    tl.store(weights_ptr + t * K + rank, topk_weights * scale, mask=chosen)


def route(
    router_logits: torch.Tensor, spec: RouterSpec, selection_bias: torch.Tensor | None, memory: Fresh
) -> tuple[torch.Tensor, torch.Tensor]:
    """(topk_ids int32 [T, K], topk_weights float32 [T, K]) in `memory`; ids of -1 for a token with a NaN logit.

    Raises ValueError for an unknown gating.
    """
    if spec.gating not in GATINGS:
        raise ValueError(f"router gating {spec.gating!r}; there are {', '.join(GATINGS)}")
    shape = router_logits.shape[0], spec.num_experts_per_tok
    ids, weights = memory.take(shape, torch.int32), memory.take(shape)
    _router_kernel[(shape[0],)](
        router_logits, weights if selection_bias is None else selection_bias, ids, weights, spec.num_experts,
        spec.scale, router_logits.stride(0),
        K=spec.num_experts_per_tok, GATING=GATINGS[spec.gating], NORMALISE=spec.norm_topk_prob,
        HAS_BIAS=selection_bias is not None, NUM_GROUPS=spec.num_groups, GROUPS_USED=spec.num_groups_used,
        BLOCK_G=next_power_of_two(spec.num_groups), BLOCK_S=next_power_of_two(spec.num_experts // spec.num_groups),
        BLOCK_K=next_power_of_two(spec.num_experts_per_tok), num_warps=1 if spec.num_experts <= 128 else 4,
    )  # fmt: skip
    return ids, weights
