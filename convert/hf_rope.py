"""What a `config.json` says about rotary embeddings beyond their base: how a context was stretched, in the form that a
GGUF keeps it in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from convert.hf_values import HfValues
from convert.model_metadata import RopeScaling
from models.errors import UnsupportedError

_KEYS = {
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor",
}  # fmt: skip
_OWN_KEYS = {
    "linear": set[str](),
    "yarn": {"beta_fast", "beta_slow", "truncate", "attention_factor"},
    "llama3": {"low_freq_factor", "high_freq_factor"},
    "longrope": {"short_factor", "long_factor", "short_mscale", "long_mscale"},
}
_WITH_DIVISORS = ("llama", "granitemoe")  # architectures whose files may carry rope_freqs, so that llama.cpp reads them


def read_rope_scaling(
    config: HfValues, architecture: str, n_rot: Callable[[], int], theta: float
) -> RopeScaling | None:
    """The scaling of `architecture`, None where there is none. `n_rot`: components of a head that rotate.

    Raises UnsupportedError naming what pearl or a GGUF has no place for, CheckpointError for a value of a wrong type.
    """
    rope = HfValues.of(config, config.rope())
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default" or (architecture == "hunyuan-moe" and fixed_alpha(config) is not None):
        return None
    kinds = ["linear", "yarn"] + (["llama3"] if architecture in _WITH_DIVISORS else [])
    if architecture == "phimoe":
        kinds = ["longrope"]
    if kind not in kinds or (rope.values.get("factor") is None and kind != "longrope"):
        raise UnsupportedError(
            f"{config.path}: rope type {kind!r} is not supported for {architecture}; supported: default, "
            + ", ".join(kinds)
        )
    latent = architecture == "deepseek2" and kind == "yarn"
    known = _KEYS | _OWN_KEYS[kind] | ({"mscale", "mscale_all_dim"} if latent else set())
    known |= {"mrope_section", "mrope_interleaved"} if architecture in ("qwen35moe", "qwen3vlmoe") else set()
    others = sorted(set(rope.values) - known)
    if others:
        raise UnsupportedError(f"{config.path}: rope parameter {others[0]} is not supported with {kind} scaling")
    if kind == "longrope":
        return _longrope(rope, n_rot())
    if kind == "llama3":
        return RopeScaling(kind, rope.real("factor"), tensors={"rope_freqs.weight": _divisors(rope, n_rot(), theta)})
    if kind == "linear":
        return RopeScaling(kind, rope.real("factor"))
    _check_ramp(rope, architecture)
    factor = rope.real("factor")
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_context=rope.optional_integer("original_max_position_embeddings"),
        beta_fast=rope.optional_real("beta_fast"),
        beta_slow=rope.optional_real("beta_slow"),
        attention_factor=_attention_factor(rope, factor),
        log_multiplier=_log_multiplier(rope) if latent else None,
    )


def rotated_components(config: HfValues, default: float) -> int:
    """Components of a head that rotate. Raises UnsupportedError for a share that cannot be."""
    head_dim = config.integer("head_dim")
    partial = config.rope().get("partial_rotary_factor", config.values.get("partial_rotary_factor"))
    if partial is None:
        partial = config.default("partial_rotary_factor", default)
    n_rot = int(head_dim * partial) if type(partial) in (int, float) and 0 < partial <= 1 else 0
    if n_rot < 2 or n_rot % 2:
        raise UnsupportedError(f"{config.path}: partial_rotary_factor {partial!r} of {head_dim} is not possible")
    return n_rot


def fixed_alpha(config: HfValues) -> float | None:
    """The alpha of Hunyuan's "dynamic" scaling, which depends on no length; None where there is none. Raises
    UnsupportedError for one that is no stretch, or beside a factor.
    """
    rope = HfValues.of(config, config.rope())
    if rope.values.get("rope_type", rope.values.get("type")) != "dynamic" or rope.values.get("alpha") is None:
        return None
    rope.require("factor", 1.0)
    alpha = rope.real("alpha")
    if alpha < 1.0:
        raise UnsupportedError(f"{config.path}: rope alpha {alpha} is not supported; supported: 1 and above")
    return alpha


def stretched_theta(config: HfValues, theta: float, n_rot: int) -> float:
    """NTK-aware scaling by a fixed alpha: theta * alpha^(d / (d - 2)), so that the slowest of d / 2 frequencies is
    divided by alpha and the fastest stays. A GGUF keeps the new base alone.
    """
    alpha = fixed_alpha(config)
    return theta if alpha is None or n_rot <= 2 else theta * alpha ** (n_rot / (n_rot - 2))


def _longrope(rope: HfValues, n_rot: int) -> RopeScaling:
    """Divisors for contexts up to the original one and for longer ones, and one factor on cos and sin for both."""
    lists = {kind: rope.values.get(f"{kind}_factor") for kind in ("short", "long")}
    for kind, values in lists.items():
        numbers = isinstance(values, list) and all(type(v) in (int, float) for v in values)
        if not isinstance(values, list) or len(values) != n_rot // 2 or not numbers:
            raise UnsupportedError(f"{rope.path}: {kind}_factor is no list of {n_rot // 2} numbers")
    factor, other = rope.real("short_mscale"), rope.real("long_mscale")
    if factor != other:
        raise UnsupportedError(f"{rope.path}: short_mscale {factor} and long_mscale {other} differ; a GGUF holds one")
    return RopeScaling(
        kind="longrope",
        factor=1.0,
        original_context=rope.integer("original_max_position_embeddings"),
        attention_factor=factor,
        tensors={f"rope_factors_{kind}.weight": tuple(map(float, values or ())) for kind, values in lists.items()},
    )


def _attention_factor(rope: HfValues, factor: float) -> float | None:
    """What is on cos and sin beside YaRN's own 0.1 ln factor + 1."""
    stated = rope.optional_real("attention_factor")
    return None if stated is None else stated / (0.1 * math.log(factor) + 1.0)


def _check_ramp(rope: HfValues, architecture: str) -> None:
    """No key of a GGUF says whether YaRN's ramp is rounded to whole components, so it must be as the architecture has
    it.
    """
    expected = architecture != "gpt-oss"
    if rope.values.get("truncate", True) is not expected:
        raise UnsupportedError(
            f"{rope.path}: YaRN with truncate {rope.values.get('truncate')} is not supported for {architecture}; "
            f"supported: {expected}"
        )


def _log_multiplier(rope: HfValues) -> float:
    """0.1 * mscale_all_dim; with mscale equal to it the factor on cos and sin is 1, which is all that GGUF says."""
    own, all_dim = rope.values.get("mscale"), rope.values.get("mscale_all_dim")
    if not all_dim or own != all_dim:
        raise UnsupportedError(
            f"{rope.path}: YaRN with mscale {own} and mscale_all_dim {all_dim} is not supported; supported: equal and "
            "above 0"
        )
    return 0.1 * rope.real("mscale_all_dim")


def _divisors(rope: HfValues, n_rot: int, theta: float) -> tuple[float, ...]:
    """What divides each frequency by Llama 3.1's rule: 1 for waves that fit `high_freq_factor` times into the original
    context, `factor` for those that fit less than `low_freq_factor` times, between them a smooth passage.
    """
    factor, low, high = (rope.real(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if not 0 < low < high:
        raise UnsupportedError(f"{rope.path}: low_freq_factor {low} and high_freq_factor {high} are not possible")
    frequencies = theta ** -(np.arange(0, n_rot, 2) / n_rot)
    turns = rope.integer("original_max_position_embeddings") * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    values: Any = 1.0 / (kept + (1.0 - kept) / factor)
    return tuple(values.tolist())
