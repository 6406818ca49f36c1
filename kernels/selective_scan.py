"""Sizes and constants of a selective scan, as every backend's `selective_scan` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Array = Any  # as in kernels.backend


@dataclass(frozen=True, slots=True)
class SelectiveScan:
    """Sizes and constants of one layer's selective scan (Mamba-2, arXiv 2405.21060): H heads over `num_groups` pairs of
    B and C, of which head h reads pair h // (H / num_groups).

    decay float32 [H]: -e^A, what files call ssm_a; dt_bias float32 [H]; skip float32 [H]: D, what files call ssm_d.
    """

    num_groups: int
    num_heads: int
    state_size: int
    head_dim: int
    decay: Array
    dt_bias: Array
    skip: Array
