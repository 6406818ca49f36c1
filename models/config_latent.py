"""The head geometry of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), read from either tensor layout.

Files of two kinds are about: older ones state the expanded heads (key_length 192, a key head for each query head),
newer ones the cached latent (key_length 576, one key head) with the expanded widths in `*_mla`. Both mean the same
model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from models.errors import GGUFError, UnsupportedError


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """q_lora_rank: width of the compressed query, 0 where it is projected directly; kv_lora_rank: width of the latent.

    nope_dim: components of a query head that do not rotate; value_dim: width of a head's output.
    """

    q_lora_rank: int
    kv_lora_rank: int
    nope_dim: int
    value_dim: int


def read_latent(values: dict[str, Any], where: str) -> LatentConfig:
    """The geometry in the fields `values`, whose head fields it replaces by those of the cache.

    That is one key head [n_rot rotated components | latent], with the latent as its value. Raises GGUFError for widths
    that cannot be, UnsupportedError for a scaled rotation without its rule for the softmax.
    """
    latent = LatentConfig(
        q_lora_rank=values["q_lora_rank"],
        kv_lora_rank=values["kv_lora_rank"],
        nope_dim=values["mla_key_length"] - values["n_rot"],
        value_dim=values["mla_value_length"],
    )
    if min(latent.kv_lora_rank, latent.nope_dim, latent.value_dim) <= 0 or latent.q_lora_rank < 0:
        raise GGUFError(f"{where}: latent attention with {latent} is not possible")
    scale = values["mla_key_length"] ** -0.5
    if values["rope_scaling"] == "yarn":
        scale *= _yarn_softmax_factor(values, where)
        # Here the factor is on the softmax; what the rotation would put on cos and sin is taken off again.
        values["rope_attention_factor"] = 1.0 / (0.1 * math.log(values["rope_factor"]) + 1.0)
    values.update(
        num_kv_heads=1,
        head_dim=latent.kv_lora_rank + values["n_rot"],
        value_dim=latent.kv_lora_rank,
        attention_scale=scale,
    )
    return latent


def _yarn_softmax_factor(values: dict[str, Any], where: str) -> float:
    """(0.1 * mscale_all_dim * ln(factor) + 1)^2; files store 0.1 * mscale_all_dim."""
    multiplier = values["yarn_log_multiplier"]
    if multiplier == 0.0 or values["rope_attention_factor"] != 1.0:
        raise UnsupportedError(
            f"{where}: YaRN with rope.scaling.yarn_log_multiplier {multiplier} and rope.scaling.attn_factor "
            f"{values['rope_attention_factor']} is not implemented for latent attention; supported: a multiplier "
            "above 0 and no attn_factor"
        )
    return float((multiplier * math.log(max(values["rope_factor"], 1.0)) + 1.0) ** 2)
