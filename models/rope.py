"""Rotation tables for rotary position embedding, with the frequency scalings that stretch a context.

Angles are made as the models were trained with them: float32 frequencies times positions. Where the pairs of a head
lie is the kernel's business (`RopeTable.interleaved`).
"""

from __future__ import annotations

import math

import numpy as np

from kernels.backend import RopeTable
from models.config_rope import RopeConfig


def build_rope_table(rope: RopeConfig, n_positions: int, freq_divisors: np.ndarray | None = None) -> RopeTable:
    """cos and sin for positions 0..n_positions - 1: host arrays, 4 * n_rot bytes a position.

    `freq_divisors` float32 [n_rot / 2] is what a file stores as `rope_freqs.weight` (Llama 3's scaling in finished
    form). Raises ValueError for a scaling that is not implemented; the config refuses it before, by name.
    """
    frequencies, magnitude = rope_frequencies(rope)
    if freq_divisors is not None:
        frequencies = frequencies / freq_divisors.astype(np.float32)
    angles = np.arange(n_positions, dtype=np.float32)[:, None] * frequencies[None, :]
    cos, sin = np.cos(angles, dtype=np.float64), np.sin(angles, dtype=np.float64)
    return RopeTable(
        (cos * magnitude).astype(np.float32), (sin * magnitude).astype(np.float32), rope.n_rot, rope.interleaved
    )


def rope_frequencies(rope: RopeConfig) -> tuple[np.ndarray, float]:
    """(float32 [n_rot / 2] radians a position, factor on cos and sin) after scaling."""
    exponents = np.arange(0, rope.n_rot, 2, dtype=np.float32) / np.float32(rope.n_rot)
    plain = (1.0 / np.float32(rope.theta) ** exponents).astype(np.float32)
    if rope.scaling == "none":
        return plain, 1.0
    if rope.scaling == "off":
        return np.zeros_like(plain), 1.0
    if rope.scaling == "linear":
        return plain / np.float32(rope.factor), 1.0
    if rope.scaling == "longrope":  # the frequencies' divisors come with the file
        return plain, rope.attention_factor
    if rope.scaling == "yarn":
        return _yarn(plain, rope)
    raise ValueError(f"rope scaling {rope.scaling!r}")


def _yarn(plain: np.ndarray, rope: RopeConfig) -> tuple[np.ndarray, float]:
    """YaRN (arXiv 2309.00071, section 3.2): slow components are stretched, fast ones kept, a ramp between.

    A component is fast where it turns more than `beta_fast` times in the original context, slow below `beta_slow`
    turns.
    """

    def component(turns: float) -> float:
        return rope.n_rot * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = component(rope.beta_fast), component(rope.beta_slow)
    if rope.whole_components:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.n_rot - 1)
    span = max(high - low, 0.001)  # never a division by zero where both borders fall on one component
    keep = 1.0 - np.clip((np.arange(rope.n_rot // 2) - low) / span, 0.0, 1.0)
    mixed = plain / rope.factor * (1.0 - keep) + plain * keep
    return mixed.astype(np.float32), rope.attention_factor * (0.1 * math.log(rope.factor) + 1.0)
