"""Sizes and constants of a gated delta rule, as every backend's `delta_rule` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Array = Any  # as in kernels.backend

DELTA_NORM_EPS = 1e-6
"""Added to the sum of squares that the delta rule divides queries and keys by the root of: transformers' and FLA's."""


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Sizes and constants of one layer's gated delta rule: H value heads over `num_key_heads` query and key heads.

    decay float32 [H]: -e^A, what files call ssm_a; dt_bias float32 [H]. tiled: value head h reads key head
    h % num_key_heads, else h // (H / num_key_heads).
    """

    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int
    decay: Array
    dt_bias: Array
    tiled: bool
