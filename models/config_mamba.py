"""The geometry of Mamba-2 layers (arXiv 2405.21060), which files state under `ssm.*`: which layers are such, and how
wide their parts are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.config_short_conv import without_attention
from models.errors import GGUFError
from models.layer_memory import LayerMemory, states_of


@dataclass(frozen=True, slots=True)
class Mamba2Config:
    """layers: for each layer whether it is one of Mamba-2. conv_kernel: tokens that its convolution spans; num_heads,
    each with a state [state_size, head_dim], over num_groups pairs of B and C.
    """

    layers: tuple[bool, ...]
    conv_kernel: int
    num_groups: int
    num_heads: int
    state_size: int
    head_dim: int

    @property
    def inner_width(self) -> int:
        """Width of all heads side by side."""
        return self.num_heads * self.head_dim

    @property
    def conv_width(self) -> int:
        """Width of what the convolution mixes: inputs, B and C of all groups."""
        return self.inner_width + 2 * self.num_groups * self.state_size

    @property
    def projected_width(self) -> int:
        """Rows of the matrix that makes the gate, what the convolution mixes, and the steps."""
        return self.inner_width + self.conv_width + self.num_heads

    @property
    def memory(self) -> tuple[LayerMemory | None, ...]:
        """What each such layer keeps of a sequence: the inputs that its convolution still sees, and one matrix a
        head.
        """
        conv_state = (self.conv_kernel - 1, self.conv_width)
        return states_of(self.layers, conv_state, (self.num_heads, self.state_size, self.head_dim))


def read_mamba(values: dict[str, Any], where: str) -> Mamba2Config:
    """The geometry in the fields `values`, of which `num_kv_heads` becomes one number. Raises GGUFError for sizes that
    cannot be.
    """
    conv_kernel, groups, heads = values["mamba_conv_kernel"], values["mamba_groups"], values["mamba_heads"]
    state_size, inner = values["mamba_state_size"], values["mamba_inner_size"]
    rules = {
        f"ssm.conv_kernel {conv_kernel}": conv_kernel >= 2,
        f"ssm.state_size {state_size}": state_size > 0,
        f"{heads} heads over {groups} groups": groups > 0 and heads > 0 and heads % groups == 0,
        f"{heads} heads in an ssm.inner_size of {inner}": heads > 0 and inner > 0 and inner % heads == 0,
    }
    for rule, holds in rules.items():
        if not holds:
            raise GGUFError(f"{where}: Mamba-2 layers are not possible with {rule}")
    layers = without_attention(values, where) or (False,) * values["num_layers"]
    return Mamba2Config(layers, conv_kernel, groups, heads, state_size, inner // heads)
