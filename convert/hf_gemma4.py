"""What a Gemma 4 `config.json` says beside the sizes that all models have: two kinds of attention layers, with heads
and a rotation each. Only the kind with experts is read; what its relatives have beside that is refused by name.
"""

from __future__ import annotations

from typing import Any

from convert.hf_values import HfValues
from convert.model_metadata import RopeScaling, WindowHeads
from models.errors import CheckpointError, UnsupportedError

_WINDOW, _FULL = "sliding_attention", "full_attention"
_NOT_TURNED = 1e30  # divides a frequency to nothing


def gemma4_fields(config: HfValues) -> dict[str, Any]:
    """The fields of `ModelDims` for a model with experts. Raises CheckpointError, UnsupportedError."""
    config.require("enable_moe_block", True)
    config.require("hidden_activation", "gelu_pytorch_tanh")
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        config.require(key, 0)
    for key in ("attention_bias", "use_double_wide_mlp"):
        config.require(key, False)
    config.require("use_bidirectional_attention", "vision")
    layers = config.integer("num_hidden_layers")
    usual = [_FULL if (layer + 1) % 6 == 0 or layer + 1 == layers else _WINDOW for layer in range(layers)]
    kinds = config.layer_types(_WINDOW, _FULL, default=usual)
    if kinds[-1:] != [_FULL]:
        raise UnsupportedError(f"{config.path}: layer_types {kinds!r} is not supported; the last must be {_FULL}")
    ropes = {kind: config.rope_of(kind) for kind in (_WINDOW, _FULL)}
    ropes[_WINDOW].require("rope_type", "default")
    ropes[_FULL].require("rope_type", "proportional")
    ropes[_FULL].require("factor", 1.0)
    full_dim, full_heads = _full_heads(config, kinds)
    return {
        "head_dim": full_dim,
        "num_kv_heads": full_heads,
        "qk_norm": "head",
        "moe_intermediate_size": config.integer("moe_intermediate_size"),
        "rope_theta": ropes[_FULL].real("rope_theta"),
        "rope_scaling": _proportional(ropes[_FULL], full_dim),
        "sliding_window": config.integer("sliding_window"),
        "window_layers": tuple(kind == _WINDOW for kind in kinds),
        "window_heads": WindowHeads(
            num_kv_heads=config.integer("num_key_value_heads"),
            head_dim=config.integer("head_dim"),
            rope_theta=ropes[_WINDOW].real("rope_theta"),
        ),
        "shares_values": bool(config.flag("attention_k_eq_v")),
        "logit_softcap": config.optional_real("final_logit_softcapping"),
    }


def _full_heads(config: HfValues, kinds: list[str]) -> tuple[int, int]:
    """(width, key/value heads) of the layers that see everything: stated layer by layer, or for all of them."""
    usual = config.integer("num_key_value_heads")
    stated = config.values.get("per_layer_config")
    if stated is None:
        shares = config.flag("attention_k_eq_v")
        heads = config.integer("num_global_key_value_heads", default=usual) if shares else usual
        return config.integer("global_head_dim", default=512), heads
    if not isinstance(stated, dict) or not all(isinstance(values, dict) for values in stated.values()):
        raise CheckpointError(f"{config.path}: per_layer_config is no JSON object of objects, one a layer")
    full = {str(layer) for layer, kind in enumerate(kinds) if kind == _FULL}
    own = [HfValues.of(config, values) for layer, values in stated.items() if layer in full]
    found = {(part.integer("head_dim"), part.integer("num_key_value_heads", default=usual)) for part in own}
    if set(stated) != full or len(found) != 1:
        raise UnsupportedError(f"{config.path}: per_layer_config must make all layers of {_FULL} alike, and only those")
    return found.pop()


def _proportional(rope: HfValues, head_dim: int) -> RopeScaling:
    """Only the first components turn, with the frequencies of a whole head; the others' are divided to nothing."""
    share = rope.real("partial_rotary_factor", default=1.0)
    if not 0 <= share <= 1:
        raise CheckpointError(f"{rope.path}: partial_rotary_factor is {share}; a share of a head lies between 0 and 1")
    n_turned = int(share * head_dim) // 2
    divisors = (1.0,) * n_turned + (_NOT_TURNED,) * (head_dim // 2 - n_turned)
    return RopeScaling("proportional", 1.0, tensors={"rope_freqs.weight": divisors})
