"""Test brick: a selective scan over random rows."""

from __future__ import annotations

import numpy as np

from kernels.cpu.selective_scan import selective_scan
from kernels.selective_scan import SelectiveScan


class ScanProblem:
    """Random rows, steps and constants; rows of one array, so that they lie apart."""

    def __init__(self, n_tokens: int, groups: int, heads: int, state_size: int, head_dim: int) -> None:
        rng = np.random.default_rng(n_tokens + heads)
        width = heads * head_dim + 2 * groups * state_size
        rows = rng.standard_normal((n_tokens, width + heads + 3)).astype(np.float32)
        self.xbc, self.dt = rows[:, :width], rows[:, width : width + heads]
        decay = -np.exp(rng.standard_normal(heads)).astype(np.float32)
        dt_bias, skip = (rng.standard_normal(heads).astype(np.float32) for _ in range(2))
        self.scan = SelectiveScan(groups, heads, state_size, head_dim, decay, dt_bias, skip)
        self.state = rng.standard_normal((heads, state_size, head_dim)).astype(np.float32)

    def run(self, state: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        return selective_scan(self.xbc[rows], self.dt[rows], self.scan, state)
