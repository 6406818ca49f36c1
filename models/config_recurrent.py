"""The geometry of a gated delta net (arXiv 2412.06464): which layers have one in attention's place, and how wide its
parts are.

Files keep these under the names that state space models brought (`ssm.*`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.errors import GGUFError
from models.layer_memory import LayerMemory, states_of


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """layers: for each layer whether it has a delta net. conv_kernel: tokens that its convolution spans; num_heads:
    value heads, each with a state [key_dim, value_dim], over num_key_heads query and key heads.
    """

    layers: tuple[bool, ...]
    conv_kernel: int
    num_key_heads: int
    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def value_width(self) -> int:
        """Width of all heads' values."""
        return self.num_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Width of queries, keys and values side by side."""
        return 2 * self.num_key_heads * self.key_dim + self.value_width

    @property
    def memory(self) -> tuple[LayerMemory | None, ...]:
        """What each layer with a delta net keeps of a sequence: the inputs that its convolution still sees, and one
        matrix a head.
        """
        conv_state = (self.conv_kernel - 1, self.conv_width)
        return states_of(self.layers, conv_state, (self.num_heads, self.key_dim, self.value_dim))


def read_delta_net(values: dict[str, Any], where: str) -> DeltaNetConfig:
    """The geometry in the fields `values`. Raises GGUFError for sizes that cannot be."""
    conv_kernel, heads, key_heads = values["ssm_conv_kernel"], values["ssm_heads"], values["ssm_key_heads"]
    key_dim, inner = values["ssm_state_size"], values["ssm_inner_size"]
    rules = {
        f"ssm.conv_kernel {conv_kernel}": conv_kernel >= 2,
        f"ssm.state_size {key_dim}": key_dim > 0,
        f"{heads} value heads over {key_heads} key heads": key_heads > 0 and heads > 0 and heads % key_heads == 0,
        f"{heads} heads in an ssm.inner_size of {inner}": heads > 0 and inner > 0 and inner % heads == 0,
    }
    for rule, holds in rules.items():
        if not holds:
            raise GGUFError(f"{where}: a gated delta net is not possible with {rule}")
    return DeltaNetConfig(_recurrent_layers(values, where), conv_kernel, key_heads, heads, key_dim, inner // heads)


def _recurrent_layers(values: dict[str, Any], where: str) -> tuple[bool, ...]:
    """Stated layer by layer, or all but every `full_attention_interval`-th."""
    n: int = values["num_layers"]
    interval: int = values["full_attention_interval"]
    stated: bool | tuple[bool, ...] = values["recurrent_layers"]
    if stated == ():
        if interval < 1:
            raise GGUFError(f"{where}: full_attention_interval is {interval}; it must be above 0")
        return tuple((layer + 1) % interval != 0 for layer in range(n))
    if isinstance(stated, bool):
        return (stated,) * n
    if len(stated) < n:
        raise GGUFError(f"{where}: attention.recurrent_layers speaks of {len(stated)} layers of {n}")
    return tuple(stated[:n])
