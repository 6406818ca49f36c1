"""What a `config.json` of Granite with experts says beside the sizes that all have: constant factors, and in version 4
which layers are Mamba-2's.
"""

from __future__ import annotations

import math
from typing import Any

from convert.hf_values import HfValues
from convert.model_metadata import ConstantFactors
from models.config_mamba import Mamba2Config
from models.errors import UnsupportedError

Fields = dict[str, Any]
_MAMBA, _ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")  # as published, and since


def granite_fields(config: HfValues) -> Fields:
    """Granite 3. Raises CheckpointError, UnsupportedError."""
    config.require("position_embedding_type", "rope")
    return _common(config)


def granite_hybrid_fields(config: HfValues) -> Fields:
    """Granite 4.0 H: attention rotates only where the file says "rope". Raises CheckpointError, UnsupportedError."""
    config.require("position_embedding_type", "rope", "nope")
    config.require("normalization_function", "rmsnorm")
    config.require("mamba_proj_bias", False)
    if not config.integer("num_local_experts"):
        raise UnsupportedError(f"{config.path}: a dense model (num_local_experts is 0); pearl runs Mixture-of-Experts")
    _refuse_limits(config)
    return {
        **_common(config),
        "mamba": _mamba(config),
        "conv_bias": config.flag("mamba_conv_bias") is not False,
        "rotates": config.values.get("position_embedding_type") == "rope",
    }


def _common(config: HfValues) -> Fields:
    config.require("attention_bias", False)
    return {
        "shared_intermediate_size": config.optional_integer("shared_intermediate_size") or None,
        "factors": ConstantFactors(
            attention=config.real("attention_multiplier", default=1.0),
            embedding=config.real("embedding_multiplier", default=1.0),
            residual=config.real("residual_multiplier", default=1.0),
            logits=config.real("logits_scaling", default=1.0),
        ),
    }


def _mamba(config: HfValues) -> Mamba2Config:
    kinds = config.layer_types(*_MAMBA, *_ATTENTION, default=[_MAMBA[0]] * config.integer("num_hidden_layers"))
    heads, groups = config.integer("mamba_n_heads", default=128), config.integer("mamba_n_groups", default=1)
    inner = config.integer("mamba_expand", default=2) * config.integer("hidden_size")
    stated = config.values.get("mamba_d_head")
    head_dim = inner // max(heads, 1) if stated in (None, "auto") else config.integer("mamba_d_head")
    conv_kernel = config.integer("mamba_d_conv", default=4)
    if not groups or not heads or heads % groups or head_dim * heads != inner or conv_kernel < 2:
        raise UnsupportedError(
            f"{config.path}: {heads} Mamba-2 heads of {head_dim} in {groups} groups over a width of {inner}, with a "
            f"convolution of {conv_kernel}, are not possible"
        )
    return Mamba2Config(
        layers=tuple(kind in _MAMBA for kind in kinds),
        conv_kernel=conv_kernel,
        num_groups=groups,
        num_heads=heads,
        state_size=config.integer("mamba_d_state", default=256),
        head_dim=head_dim,
    )


def _refuse_limits(config: HfValues) -> None:
    """A GGUF has no place for limits of the steps. Infinity may be a number or, since transformers 5, its name."""
    limits = config.values.get("time_step_limit")
    endless = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
    if limits is not None and limits not in endless:
        raise UnsupportedError(f"{config.path}: time_step_limit {limits!r} is not supported; supported: 0 to infinity")
