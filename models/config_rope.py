"""The rotation of positions as a file states it: which components turn, how fast, and how that is stretched to contexts
beyond the trained one. The angles themselves are made in `models.rope`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.config_keys import ROPE_SCALINGS, Architecture
from models.errors import GGUFError, UnsupportedError
from models.gguf_cursor import show


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding of the first `n_rot` components of each head.

    interleaved: pairs (0, 1), (2, 3).. else (i, i + n_rot / 2). scaling: "none"; "off" (nothing turns); "linear"
    (positions / factor); "yarn" (original_context, beta_fast and beta_slow place the ramp; cos and sin are multiplied
    by (0.1 ln factor + 1) * attention_factor); "longrope" (the file holds divisors for contexts up to original_context
    and for longer ones; cos and sin are multiplied by attention_factor).
    """

    theta: float
    n_rot: int
    interleaved: bool
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    whole_components: bool = True  # whether YaRN's ramp begins and ends at whole components


def read_rope(v: dict[str, Any], table: Architecture, where: str) -> RopeConfig:
    """The rotation in the fields `v`. Raises UnsupportedError for an unknown scaling, GGUFError for an impossible
    one.
    """
    scaling, factor = v["rope_scaling"], v["rope_factor"] or 1.0
    if scaling not in ROPE_SCALINGS:
        raise UnsupportedError(
            f"{where}: rope.scaling.type {show(scaling)} is not implemented; supported: {', '.join(ROPE_SCALINGS)}"
        )
    if table.longrope and v["has_rope_factors"]:
        scaling = "longrope"
    if factor < 1.0:
        raise GGUFError(f"{where}: rope.scaling.factor is {factor}; it must be 1 or above")
    if scaling == "linear" and factor == 1.0:
        scaling = "none"
    if scaling == "yarn" and min(v["rope_original_context"], v["rope_beta_fast"], v["rope_beta_slow"]) <= 0:
        raise GGUFError(f"{where}: YaRN needs a rope.scaling.original_context_length and betas above 0")
    return RopeConfig(
        theta=v["rope_theta"],
        n_rot=v["n_rot"],
        interleaved=table.rope_interleaved,
        scaling=scaling,
        factor=factor,
        original_context=v["rope_original_context"],
        attention_factor=v["rope_attention_factor"],
        beta_fast=v["rope_beta_fast"],
        beta_slow=v["rope_beta_slow"],
        whole_components=table.yarn_whole_components,
    )
