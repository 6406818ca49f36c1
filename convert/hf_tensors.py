"""The stored tensors of a Hugging Face folder as source tensors: each under its GGUF name, experts one by one, shapes
checked against what config.json makes them, nothing missing and nothing left over unsaid.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from convert.delta_net_rows import (
    delta_net_view,
    is_shifted_norm,
    minus_power,
    norms_are_shifted,
    qkv_and_gate,
    unlikely_norms,
)
from convert.expert_rows import EveryNth, Reshaped, TransposedRows
from convert.hf_names import (
    DROPPED,
    SEVERAL_TOKENS,
    Expansion,
    ExpertBiasRows,
    Experts,
    Halves,
    KeyHeadGroups,
    Place,
    Plain,
    layer_of,
    map_name,
    why_left_behind,
)
from convert.hf_stored_rows import StoredRows, check_shape
from convert.latent_rows import KeyExpansion, ValueExpansion
from convert.model_metadata import ModelDims
from convert.ordered_rows import Computed
from convert.rows import ArrayRows, RopePermuted, Rows, Slice
from convert.safetensors_header import Stored
from convert.source import SourceTensor, check_experts, expert_name
from convert.tensor_table import Shapes, expert_shape, has_experts, layer_shapes, outer_shapes
from models.errors import CheckpointError, UnsupportedError

# Architectures whose GGUF keeps the rotary pairs of q and k side by side.
_PERMUTED = ("granitehybrid", "granitemoe", "llama")
_VECTORS_OF_MAMBA = (".ssm_a", ".ssm_d", ".ssm_norm.weight")  # a GGUF has a row of each head's, or group's
_LISTED = 8


@dataclass(slots=True)
class HfTensors:
    """Builds source tensors out of `rows_of` the checkpoint; `notes` are collected on the way. `unused_layers`: behind
    the last layer, left behind with a note.
    """

    folder: Path
    dims: ModelDims
    rows_of: StoredRows
    unused_layers: int
    notes: list[str] = field(default_factory=list)
    _shapes: Shapes = field(default_factory=dict)
    _shifted_norms: bool = False

    def __post_init__(self) -> None:
        self._shapes = outer_shapes(self.dims)
        for layer in range(self.dims.num_layers):
            self._shapes |= {f"blk.{layer}.{name}": shape for name, shape in layer_shapes(self.dims, layer).items()}
        if self.dims.delta_net is not None:
            self._shifted_norms = norms_are_shifted(self.rows_of.stored, self.dims.delta_net)

    def build(self, allow_unmapped: bool, whole: bool = True) -> list[SourceTensor]:
        """Every tensor of the model, in no order; with `whole` False only those that are there. Raises CheckpointError,
        UnsupportedError.
        """
        tensors = {tensor.name: tensor for tensor in self._made()}
        unmapped: list[str] = []
        left_behind: Counter[tuple[str, str]] = Counter()
        for stored in self.rows_of.stored.values():
            if DROPPED.search(stored.name) or self.rows_of.is_scale(stored.name):
                continue
            reason = self._why_left_behind(stored.name)
            if reason is not None:
                left_behind[reason] += 1
                continue
            place = map_name(stored.name, self.dims.architecture)
            if place is None or not self._has_place(place):
                unmapped.append(stored.name)
                continue
            for tensor in self._make(stored, place):
                if tensor.name in tensors:
                    raise CheckpointError(f"{stored.path}: tensor '{stored.name}' gives {tensor.name} a second time")
                tensors[tensor.name] = tensor
        for (which, why), n in left_behind.items():
            one, many = f"1 tensor{which} is left behind: such tensors", f"{n} tensors{which} are left behind: they"
            self.notes.append(f"{one if n == 1 else many} {why}")
        self._report_unlikely_norms(tensors)
        self._report_unmapped(unmapped, allow_unmapped)
        if whole:
            self._check_complete(tensors)
        return list(tensors.values())

    def _made(self) -> list[SourceTensor]:
        """The tensors that config.json holds the numbers of."""
        scaling = self.dims.rope_scaling
        numbers = scaling.tensors if scaling is not None else {}
        return [SourceTensor(name, (len(v),), ArrayRows(np.array([v], np.float32))) for name, v in numbers.items()]

    def close(self) -> None:
        self.rows_of.close()

    def _is_of_unused_layer(self, name: str) -> bool:
        layer = layer_of(name)
        first = self.dims.num_layers
        return layer is not None and first <= layer < first + self.unused_layers

    def _why_left_behind(self, name: str) -> tuple[str, str] | None:
        """(of which layers, what such tensors do) for one that is not converted."""
        if self._is_of_unused_layer(name):
            return f" of layers {self.dims.num_layers} and up", SEVERAL_TOKENS
        why = why_left_behind(name)
        return None if why is None else ("", why)

    def _has_place(self, place: Place) -> bool:
        if isinstance(place, Plain):
            return place.name in self._shapes
        if isinstance(place, Halves):
            return all(name in self._shapes for name in place.names)
        if place.layer >= self.dims.num_layers:
            return False
        if isinstance(place, Expansion):
            return self.dims.latent is not None
        if isinstance(place, KeyHeadGroups):
            return f"blk.{place.layer}.attn_qkv.weight" in self._shapes
        return has_experts(self.dims, place.layer)

    def _make(self, stored: Stored, place: Place) -> list[SourceTensor]:
        if isinstance(place, Plain):
            return [self._plain(stored, place)]
        if isinstance(place, Halves):
            return self._halves(stored, place)
        if isinstance(place, KeyHeadGroups):
            return self._key_head_groups(stored, place)
        if isinstance(place, ExpertBiasRows):
            return self._expert_biases(stored, place)
        return self._experts(stored, place) if isinstance(place, Experts) else self._expansion(stored, place)

    def _report_unmapped(self, names: list[str], allowed: bool) -> None:
        if not names:
            return
        listing = ", ".join(names[:_LISTED])
        listing += f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        if not allowed:
            raise UnsupportedError(
                f"{self.folder}: {len(names)} tensors have no place in a {self.dims.architecture} model: {listing}; "
                "--allow-unmapped leaves them behind"
            )
        self.notes.append(f"left behind, they have no place in a {self.dims.architecture} model: {listing}")

    def _check_complete(self, tensors: dict[str, SourceTensor]) -> None:
        """Everything in the table is there (but the output matrix, which may be the embedding), and all experts."""
        found: dict[int, set[tuple[int, str]]] = {}
        for name in tensors:
            parts = name.split(".")
            if len(parts) == 5 and parts[3].isdecimal():
                found.setdefault(int(parts[1]), set()).add((int(parts[3]), parts[2].removeprefix("ffn_")))
        check_experts(found, self.dims.num_experts, str(self.folder))
        for layer in range(self.dims.num_layers):
            if has_experts(self.dims, layer) and layer not in found:
                raise CheckpointError(f"{self.folder}: layer {layer} has no experts")
        missing = [name for name in self._shapes if name not in tensors and name != "output.weight"]
        if missing:
            raise CheckpointError(f"{self.folder}: the checkpoint has nothing for {', '.join(missing[:_LISTED])}")

    def _plain(self, stored: Stored, place: Plain) -> SourceTensor:
        shape = self._shapes[place.name]
        is_short = place.name.endswith(".shortconv.conv.weight")
        if (is_short or place.name.endswith(".ssm_conv1d.weight")) and len(stored.shape) == 3:  # a 1 is among the three
            channels_first = is_short or self._shifted_norms or self.dims.mamba is not None
            check_shape(stored, (shape[0], 1, shape[1]) if channels_first else (*shape, 1))
            stored = dataclasses.replace(stored, shape=shape)
        if self.dims.mamba is not None and place.name.endswith(_VECTORS_OF_MAMBA):
            check_shape(stored, (math.prod(shape),))
            stored = dataclasses.replace(stored, shape=shape)
        # A gate of one row is stored as [1, width], a GGUF keeps it as a vector.
        is_row = len(stored.shape) == 2 and stored.shape[0] == 1 and len(shape) == 1
        check_shape(stored, (1, *shape) if is_row else shape)
        rows = self.rows_of.rows(stored, math.prod(shape[:-1]), shape[-1])
        if self.dims.architecture in _PERMUTED and place.name.endswith((".attn_q.weight", ".attn_k.weight")):
            rows = RopePermuted(rows, self.dims.head_dim)
        if self.dims.delta_net is not None:
            tiled = self.dims.architecture == "qwen35moe"
            rows = delta_net_view(place.name, rows, self.dims.delta_net, tiled, self._shifted_norms)
        if self.dims.mamba is not None and place.name.endswith(".ssm_a"):
            rows = Computed(rows, minus_power)
        return SourceTensor(place.name, tuple(reversed(shape)), rows)

    def _key_head_groups(self, stored: Stored, place: KeyHeadGroups) -> list[SourceTensor]:
        net, hidden = self.dims.delta_net, self.dims.hidden_size
        assert net is not None
        check_shape(stored, (net.conv_width + net.value_width, hidden))
        parts = qkv_and_gate(self.rows_of.rows(stored, *stored.shape), net)
        names = (f"blk.{place.layer}.{name}.weight" for name in ("attn_qkv", "attn_gate"))
        return [
            SourceTensor(name, (hidden, rows.n_rows), rows) for name, rows in zip(names, parts, strict=True)
        ]

    def _report_unlikely_norms(self, tensors: dict[str, SourceTensor]) -> None:
        if self.dims.delta_net is not None:
            norms = {name: tensor.rows for name, tensor in tensors.items() if is_shifted_norm(name)}
            line = unlikely_norms(norms)
            self.notes += [line] if line is not None else []

    def _halves(self, stored: Stored, place: Halves) -> list[SourceTensor]:
        n_rows, n_cols = self._shapes[place.names[0]]
        check_shape(stored, (n_rows * len(place.names), n_cols))
        rows = self.rows_of.rows(stored, n_rows * len(place.names), n_cols)
        return [
            SourceTensor(name, (n_cols, n_rows), Slice(rows, index * n_rows, n_rows))
            for index, name in enumerate(place.names)
        ]

    def _expansion(self, stored: Stored, place: Expansion) -> list[SourceTensor]:
        latent, heads = self.dims.latent, self.dims.num_heads
        assert latent is not None
        nope, value, rank = latent.nope_dim, latent.value_dim, latent.kv_lora_rank
        check_shape(stored, (heads * (nope + value), rank))
        rows = self.rows_of.rows(stored, heads * (nope + value), rank)
        blk = f"blk.{place.layer}"
        return [
            SourceTensor(f"{blk}.attn_k_b.weight", (nope, rank, heads), KeyExpansion(rows, nope, value)),
            SourceTensor(f"{blk}.attn_v_b.weight", (rank, value, heads), ValueExpansion(rows, nope, value)),
        ]

    def _experts(self, stored: Stored, place: Experts) -> list[SourceTensor]:
        """One source tensor for each expert and linear in `stored`."""
        if place.in_turn:
            return self._experts_in_turn(stored, place)
        n_rows, n_cols = expert_shape(self.dims, place.linears[0])
        each = (n_rows * len(place.linears), n_cols)
        experts = [place.expert] if place.expert is not None else list(range(self.dims.num_experts))
        if place.transposed and stored.shape == (self.dims.num_experts, n_cols, each[0]):
            rows: Rows = TransposedRows(self.rows_of.rows(stored, len(experts) * n_cols, each[0]), n_cols)
        else:
            check_shape(stored, each if place.expert is not None else (self.dims.num_experts, *each))
            rows = self.rows_of.rows(stored, math.prod(stored.shape[:-1]), n_cols)
        return [
            SourceTensor(
                expert_name(place.layer, expert, linear),
                (n_cols, n_rows),
                rows if rows.n_rows == n_rows else Slice(rows, index * each[0] + part * n_rows, n_rows),
            )
            for part, linear in enumerate(place.linears)
            for index, expert in enumerate(experts)
        ]

    def _experts_in_turn(self, stored: Stored, place: Experts) -> list[SourceTensor]:
        """A stack in which the linears of an expert take turns row by row (or, transposed, column by column)."""
        n_rows, n_cols = expert_shape(self.dims, place.linears[0])
        n_parts, experts = len(place.linears), self.dims.num_experts
        rows: Rows
        if place.packed:
            rows = self.rows_of.packed(stored, experts, n_rows * n_parts, n_cols)
        else:
            check_shape(stored, (experts, n_cols, n_rows * n_parts))
            rows = TransposedRows(self.rows_of.rows(stored, experts * n_cols, n_rows * n_parts), n_cols)
        return [
            SourceTensor(
                expert_name(place.layer, expert, linear),
                (n_cols, n_rows),
                EveryNth(rows, expert * n_rows * n_parts + part, n_parts, n_rows),
            )
            for part, linear in enumerate(place.linears)
            for expert in range(experts)
        ]

    def _expert_biases(self, stored: Stored, place: ExpertBiasRows) -> list[SourceTensor]:
        """[E, n] of one linear, or of two in turn along a row."""
        n_parts = len(place.linears)
        n_rows, n_cols = self._shapes[f"blk.{place.layer}.ffn_{place.linears[0]}_exps.bias"]
        check_shape(stored, (n_rows, n_cols * n_parts))
        single = self.rows_of.rows(stored, n_rows * n_cols * n_parts, 1)
        return [
            SourceTensor(
                f"blk.{place.layer}.ffn_{linear}_exps.bias",
                (n_cols, n_rows),
                Reshaped(EveryNth(single, part, n_parts, n_rows * n_cols), n_cols),
            )
            for part, linear in enumerate(place.linears)
        ]
