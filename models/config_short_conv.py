"""The layers with a short convolution in attention's place (Liquid's LFM2): which they are, how far it looks back."""

from __future__ import annotations

from typing import Any

from models.errors import GGUFError
from models.layer_memory import LayerMemory, states_of


def read_short_conv(values: dict[str, Any], where: str) -> tuple[LayerMemory | None, ...] | None:
    """What each layer with a convolution keeps of a sequence: the inputs that it still sees; None for the others, and
    where no layer has one; see `without_attention`. Raises GGUFError for sizes that cannot be.
    """
    kernel = values["conv_kernel"]
    if kernel < 2:
        raise GGUFError(f"{where}: shortconv.l_cache is {kernel}; it must be above 1")
    layers = without_attention(values, where)
    return None if layers is None else states_of(layers, (kernel - 1, values["hidden_size"]))


def without_attention(values: dict[str, Any], where: str) -> tuple[bool, ...] | None:
    """Which layers have no attention, None where the file does not speak of single layers.

    A file says it with 0 key/value heads; the field is replaced by the others' number. Raises GGUFError where these
    have more than one number, or the layers are others than the file's.
    """
    n_layers, heads = values["num_layers"], values["num_kv_heads"]
    if not isinstance(heads, tuple):
        return None
    kinds = set(heads) - {0}
    if len(heads) != n_layers or len(kinds) != 1:
        raise GGUFError(f"{where}: attention.head_count_kv {heads} must name one number of heads, or 0, a layer")
    values["num_kv_heads"] = kinds.pop()
    return tuple(n == 0 for n in heads)
