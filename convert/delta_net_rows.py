"""The tensors of a gated delta net and the norms around it, from what a checkpoint stores to what a GGUF keeps.

A GGUF keeps -e^A for `A_log`; norms as the factor itself, where the checkpoint stores what is added to 1 (but for the
delta net's own norm); and in `qwen35moe` value heads in another order: with key heads a, b and two value heads each,
a0 a1 b0 b1 becomes a0 b0 a1 b1.
"""

from __future__ import annotations

import numpy as np

from convert.ordered_rows import Computed, Order, OrderedColumns, OrderedRows
from convert.rows import Floats, Rows
from convert.safetensors_header import Stored
from models.config_recurrent import DeltaNetConfig
from models.errors import CheckpointError
from models.weights import grouped_rows

_CONV = "linear_attn.conv1d.weight"
# Norm factors of trained models lie around 1; a shift that is missing or doubled takes their mean out of this.
_LIKELY_MEANS = (0.3, 1.5)


def norms_are_shifted(stored: dict[str, Stored], net: DeltaNetConfig) -> bool:
    """Whether the norms are stored as what is added to 1. Checkpoints say it by how they lay out the convolution:
    [C, 1, K] as trained; [C, K, 1] as MLX writes it, with the 1 added. Raises CheckpointError for a third layout.
    """
    found = next((tensor for name, tensor in stored.items() if name.endswith(_CONV)), None)
    if found is None or found.shape == (net.conv_width, 1, net.conv_kernel):
        return True
    if found.shape == (net.conv_width, net.conv_kernel, 1):
        return False
    raise CheckpointError(
        f"{found.path}: '{found.name}' has shape {list(found.shape)}; config.json makes it "
        f"{[net.conv_width, 1, net.conv_kernel]}"
    )


def is_shifted_norm(name: str) -> bool:
    """Whether the GGUF tensor `name` is a norm that such a checkpoint stores without the 1."""
    return name.endswith("norm.weight") and not name.endswith("ssm_norm.weight")


def delta_net_view(name: str, rows: Rows, net: DeltaNetConfig, tiled: bool, shifted: bool) -> Rows:
    """`rows` of the checkpoint as the GGUF tensor `name` has them; tensors of other kinds pass."""
    part = name.split(".", 2)[-1]
    if shifted and is_shifted_norm(name):
        return Computed(rows, _plus_one)
    if part == "ssm_a":
        rows = Computed(rows, minus_power)
    if not tiled or net.num_heads == net.num_key_heads:
        return rows
    value = net.value_dim
    if part in ("attn_qkv.weight", "ssm_conv1d.weight"):
        kept = 2 * net.num_key_heads * net.key_dim
        return OrderedRows(rows, np.concatenate([np.arange(kept), kept + _tiled(net, value)]))
    if part == "attn_gate.weight":
        return OrderedRows(rows, _tiled(net, value))
    if part in ("ssm_beta.weight", "ssm_alpha.weight"):
        return OrderedRows(rows, _tiled(net, 1))
    if part in ("ssm_a", "ssm_dt.bias"):
        return OrderedColumns(rows, _tiled(net, 1))
    return OrderedColumns(rows, _tiled(net, value)) if part == "ssm_out.weight" else rows


def qkv_and_gate(rows: Rows, net: DeltaNetConfig) -> tuple[Rows, Rows]:
    """`attn_qkv` and `attn_gate` of a matrix that holds, key head by key head, its query, key, values and gates."""
    own = net.value_width // net.num_key_heads
    order = grouped_rows(net.num_key_heads, (net.key_dim, net.key_dim, own, own))
    return OrderedRows(rows, order[: net.conv_width]), OrderedRows(rows, order[net.conv_width :])


def unlikely_norms(norms: dict[str, Rows]) -> str | None:
    """A line for the user where a norm's mean says that its 1 was left out or added twice, else None."""
    means = {name: float(rows.floats(0, 1).mean()) for name, rows in norms.items()}
    low, high = _LIKELY_MEANS
    odd = [name for name, mean in means.items() if not low <= mean <= high]
    if not odd:
        return None
    return (
        f"{len(odd)} of {len(means)} norms have a mean outside {low} to {high}, first {odd[0]} with "
        f"{means[odd[0]]:.2f}: compare the converted model's answers with the original's"
    )


def _tiled(net: DeltaNetConfig, head: int) -> Order:
    """Value heads of `head` rows each from their key heads' order to going round the key heads."""
    index = np.arange(net.num_heads * head).reshape(net.num_key_heads, -1, head)
    order: Order = index.swapaxes(0, 1).reshape(-1)
    return order


def _plus_one(x: Floats) -> Floats:
    factor: Floats = x + np.float32(1.0)
    return factor


def minus_power(x: Floats) -> Floats:
    """-e^x: a decay as a GGUF keeps it."""
    power: Floats = np.exp(x)
    power *= -1.0
    return power
