"""The grouped expert ops: each listed expert is dequantised and applied to its own tokens in float64."""

from __future__ import annotations

import numpy as np

from kernels.backend import ExpertGroups, ExpertTable
from kernels.quant_types import QuantType
from kernels.reference.dequant import matrix_at
from kernels.reference.linear import gated_unit_ref


def expert_gate_up_ref(
    x: np.ndarray, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, h: np.ndarray
) -> None:
    """Write h[pair] = unit(gate_e x, up_e x) for the pair rows of the groups in `which`; x [T, D], h [P, F].

    Biases of the table are added to the products. Rows of other groups stay as they are.
    """
    shape = (table.intermediate_size, table.hidden_size)
    for g in which:
        expert, rows = int(groups.expert_ids[g]), slice(int(groups.offsets[g]), int(groups.offsets[g + 1]))
        tokens = x[groups.token_ids[rows]].astype(np.float64)
        gate = matrix_at(int(table.gate[expert]), QuantType(int(table.gate_types[expert])), *shape)
        up = matrix_at(int(table.up[expert]), QuantType(int(table.up_types[expert])), *shape)
        gated, upped = tokens @ gate.astype(np.float64).T, tokens @ up.astype(np.float64).T
        if table.biases is not None:
            gated, upped = gated + table.biases.gate[expert], upped + table.biases.up[expert]
        h[rows] = gated_unit_ref(gated, upped, table.unit)


def expert_down_ref(h: np.ndarray, table: ExpertTable, groups: ExpertGroups, which: np.ndarray, d: np.ndarray) -> None:
    """Write d[pair] = down_e h[pair], plus the bias, for the pair rows of the groups in `which`; h [P, F], d [P, D].

    Rows of other groups stay as they are.
    """
    for g in which:
        expert, rows = int(groups.expert_ids[g]), slice(int(groups.offsets[g]), int(groups.offsets[g + 1]))
        down = matrix_at(
            int(table.down[expert]),
            QuantType(int(table.down_types[expert])),
            table.hidden_size,
            table.intermediate_size,
        )
        out = h[rows].astype(np.float64) @ down.astype(np.float64).T
        d[rows] = out if table.biases is None else out + table.biases.down[expert]


def expert_combine_ref(d: np.ndarray, groups: ExpertGroups, topk_weights: np.ndarray) -> np.ndarray:
    """Sum of topk_weights[t, k] * d[pair_of[t, k]] over k = 0, 1, .. in that order: float64 [T, D]."""
    out = np.zeros((topk_weights.shape[0], d.shape[1]))
    for k in range(topk_weights.shape[1]):
        out += topk_weights[:, k : k + 1].astype(np.float64) * d[groups.pair_of[:, k]]
    return out
