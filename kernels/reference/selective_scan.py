"""The selective scan of Mamba-2 (arXiv 2405.21060, section 2) as the recurrence that defines it, token after token."""

from __future__ import annotations

import numpy as np

from kernels.selective_scan import SelectiveScan


def selective_scan_ref(xbc: np.ndarray, dt: np.ndarray, scan: SelectiveScan, state: np.ndarray) -> np.ndarray:
    """What `RecurrentOps.selective_scan` says, in float64: [T, H * p]. Mutates `state` [H, n, p], rounded once a
    call.
    """
    n_tokens, heads, groups = xbc.shape[0], scan.num_heads, scan.num_groups
    rows = xbc.astype(np.float64)
    width, both = heads * scan.head_dim, groups * scan.state_size
    x = rows[:, :width].reshape(n_tokens, heads, scan.head_dim)
    pairs = (rows[:, width : width + both], rows[:, width + both :])
    own = np.arange(heads) // (heads // groups)
    b, c = (part.reshape(n_tokens, groups, scan.state_size)[:, own] for part in pairs)  # [T, H, n]
    step = np.logaddexp(0.0, dt.astype(np.float64) + scan.dt_bias)  # [T, H]
    kept = np.exp(scan.decay * step)
    memory, out = state.astype(np.float64), np.zeros((n_tokens, heads, scan.head_dim))
    for t in range(n_tokens):
        memory *= kept[t, :, None, None]
        memory += np.einsum("hn,hp->hnp", b[t], step[t, :, None] * x[t])
        out[t] = np.einsum("hnp,hn->hp", memory, c[t]) + scan.skip[:, None] * x[t]
    state[:] = memory
    return out.reshape(n_tokens, -1)
