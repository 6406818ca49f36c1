"""Test brick: a gated delta rule over random rows."""

from __future__ import annotations

import numpy as np

from kernels.cpu.delta_rule import delta_rule
from kernels.delta_rule import DeltaRule


class Problem:
    """Random rows, gates and constants; rows of one array, so that they lie apart."""

    def __init__(self, n_tokens: int, keys: int, heads: int, key_dim: int, value_dim: int, tiled: bool) -> None:
        rng = np.random.default_rng(n_tokens + heads)
        self.width = 2 * keys * key_dim + heads * value_dim
        rows = rng.standard_normal((n_tokens, self.width + 3 * heads + 2)).astype(np.float32)
        self.qkv = rows[:, : self.width]
        self.beta, self.alpha = (rows[:, self.width + i * heads : self.width + (i + 1) * heads] for i in (0, 1))
        decay = -np.exp(rng.standard_normal(heads) - 1.5).astype(np.float32)
        self.rule = DeltaRule(
            keys, heads, key_dim, value_dim, decay, rng.standard_normal(heads).astype(np.float32), tiled
        )
        self.state = rng.standard_normal((heads, key_dim, value_dim)).astype(np.float32)

    def run(self, state: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
        return delta_rule(self.qkv[rows], self.beta[rows], self.alpha[rows], self.rule, state)
