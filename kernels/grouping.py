"""Sort the (token, rank) pairs of a call by expert, so that each expert is read once for all of its tokens.

Worked example, T = 3 tokens, K = 2, topk_ids = [[5, 2], [2, 7], [5, 7]]:
    pairs in order (token, rank): (0,0):5 (0,1):2 (1,0):2 (1,1):7 (2,0):5 (2,1):7
    sorted by expert (stable):    2: tokens 0, 1   5: tokens 0, 2   7: tokens 1, 2
    expert_ids = [2, 5, 7]   offsets = [0, 2, 4, 6]   token_ids = [0, 1, 0, 2, 1, 2]
    pair_of = [[2, 0], [1, 4], [3, 5]]     pair row 2 is token 0's rank 0 (expert 5)
"""

from __future__ import annotations

from functools import cache

import numpy as np

from kernels.backend import ExpertGroups


@cache
def _one_token(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(offsets, token_ids, pair_of) of any one token's groups; nobody writes to them."""
    ranks = np.arange(k + 1, dtype=np.int32)
    return ranks, np.zeros(k, np.int32), ranks[:k].reshape(1, k)


def group_by_expert(topk_ids: np.ndarray) -> ExpertGroups:
    """Group int32 [T, K]. For one token the groups keep rank order (no sort): group g is rank g."""
    n_tokens, k = topk_ids.shape
    if n_tokens == 1:
        return ExpertGroups(topk_ids[0], *_one_token(k))
    flat = topk_ids.reshape(-1)
    order = np.argsort(flat, kind="stable").astype(np.int32)
    expert_ids, first = np.unique(flat[order], return_index=True)
    pair_of = np.empty(flat.size, np.int32)
    pair_of[order] = np.arange(flat.size, dtype=np.int32)
    return ExpertGroups(
        expert_ids=expert_ids.astype(np.int32),
        offsets=np.append(first, flat.size).astype(np.int32),
        token_ids=(order // k).astype(np.int32),
        pair_of=pair_of.reshape(n_tokens, k),
    )
