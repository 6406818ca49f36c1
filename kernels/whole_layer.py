"""The experts of a layer when all that were chosen are in place: the steps of the op set, one after another."""

from __future__ import annotations

import numpy as np

from kernels.backend import Activations, Array, Backend, ExpertTable
from kernels.grouping import group_by_expert


def experts_by_steps(
    backend: Backend, a: Activations, table: ExpertTable, topk_ids: np.ndarray, topk_weights: np.ndarray
) -> Array:
    """`Backend.experts` out of `expert_gate_up`, `expert_down` and `expert_combine`: float32 [T, D]."""
    groups = group_by_expert(topk_ids)
    which = np.arange(groups.expert_ids.shape[0], dtype=np.int32)
    h, d = backend.pair_buffers(topk_ids.size, table.intermediate_size, table.hidden_size)
    backend.expert_gate_up(a, table, groups, which, h)
    backend.expert_down(h, table, groups, which, d)
    return backend.expert_combine(d, groups, topk_weights)
