"""The two kinds of attention layers of Gemma 4: those with a sliding window have narrower heads, another number of
key/value heads and another rotation than those that see everything.
"""

from __future__ import annotations

from typing import Any

from models.errors import GGUFError
from models.layer_memory import LayerMemory


def settle_heads(values: dict[str, Any], where: str) -> None:
    """Keep the numbers of key/value heads of all layers in `kv_heads`, and leave the last layer's, which sees
    everything, in `num_kv_heads` (mutates `values`). Raises GGUFError for a list of another length.
    """
    stated = values["num_kv_heads"]
    values["kv_heads"] = stated if isinstance(stated, tuple) else None
    if isinstance(stated, tuple):
        if len(stated) != values["num_layers"]:
            n_layers = values["num_layers"]
            raise GGUFError(f"{where}: attention.head_count_kv speaks of {len(stated)} layers of {n_layers}")
        values["num_kv_heads"] = stated[-1]
    values.update(attention_scale=1.0, embedding_scale=float(values["hidden_size"]) ** 0.5)


def attention_by_layer(
    values: dict[str, Any], window_layers: tuple[bool, ...] | None, where: str
) -> tuple[LayerMemory, ...]:
    """What each layer keeps of a sequence. Raises GGUFError for heads that cannot be."""
    n_layers, heads, n_rot = values["num_layers"], values["num_heads"], values["n_rot_window"]
    width, value_width = values["head_dim_window"], values["value_dim_window"]
    if min(width, value_width, n_rot) <= 0 or width != value_width or n_rot > width or n_rot % 2:
        raise GGUFError(
            f"{where}: heads of {width} and {value_width} with {n_rot} rotated components in the layers with a window"
        )
    kv_heads = values["kv_heads"] or (values["num_kv_heads"],) * n_layers
    if any(n <= 0 or heads % n for n in kv_heads):
        raise GGUFError(f"{where}: {heads} heads do not divide by key/value heads {kv_heads}")
    has_window = window_layers or (False,) * n_layers
    return tuple(
        LayerMemory(n, width, value_width, values["sliding_window"])
        if windowed
        else LayerMemory(n, values["head_dim"], values["value_dim"])
        for n, windowed in zip(kv_heads, has_window, strict=True)
    )
