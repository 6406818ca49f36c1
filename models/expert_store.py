"""`ExpertStore`: where the three matrices of each expert lie on disk, for pearl shards and for stock GGUF as it is.

Per projection and layer a file holds either one tensor an expert (`blk.{l}.ffn_gate.{e}.weight`), or all experts
stacked (`ffn_gate_exps`: expert e is a contiguous slice), or gate and up fused in one stack (`ffn_gate_up_exps`: gate
rows first). It plans and reads; what stays in memory is not its business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from kernels.quant_types import QuantType
from models.config import ModelConfig
from models.errors import GGUFError
from models.gguf import GGUFModel, TensorInfo

LINEARS = ("gate", "up", "down")
_EXPERT_TENSOR = re.compile(r"blk\.\d+\.ffn_(?:(?:gate|up|down|gate_up)_exps|(?:gate|up|down)\.\d+)\.weight")


def is_expert_tensor(name: str) -> bool:
    """Whether a tensor of this name belongs to routed experts, in any layout."""
    return _EXPERT_TENSOR.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One matrix of one expert: `n_bytes` from `offset` of file `file_index`, rows of `quant_type` blocks."""

    file_index: int
    offset: int
    n_bytes: int
    quant_type: QuantType


@dataclass(frozen=True, slots=True)
class Span:
    """All three matrices of an expert in one piece of a file, in the order of LINEARS."""

    file_index: int
    offset: int
    n_bytes: int


class ExpertStore:
    """Positions of all experts of `gguf`; needs 24 bytes a matrix. Keeps `gguf` open for reading, does not close it."""

    def __init__(self, gguf: GGUFModel, config: ModelConfig) -> None:
        """Raises GGUFError naming layer, expert and projection where a matrix is missing, has another shape or is
        there twice.
        """
        self.num_layers = config.num_layers
        self.num_experts = config.router.num_experts
        self.paths = gguf.paths
        self._gguf = gguf
        self._config = config
        self._moe_layers = list(config.moe_layers)
        shape = (self.num_layers, self.num_experts, len(LINEARS))
        self._files = np.zeros(shape, np.int32)
        self._types = np.zeros(shape, np.int32)
        self._offsets = np.zeros(shape, np.int64)
        self._n_bytes = np.zeros(shape, np.int64)
        for layer in self._moe_layers:
            for linear in range(len(LINEARS)):
                self._place(layer, linear)
        self._refuse_leftovers()

    def moe_layers(self) -> list[int]:
        """The layers that have experts, ascending."""
        return list(self._moe_layers)

    @property
    def total_bytes(self) -> int:
        """Bytes of all experts of all layers."""
        return int(self._n_bytes.sum())

    def expert_bytes(self, layer: int) -> int:
        """Bytes of the largest expert of `layer` (its three matrices)."""
        return int(self._n_bytes[layer].sum(axis=1).max())

    def chunk(self, layer: int, expert: int, linear: int) -> Chunk:
        """Where matrix `linear` (0 gate, 1 up, 2 down) of an expert lies."""
        at = layer, expert, linear
        n_bytes = int(self._n_bytes[at])
        if n_bytes == 0:
            raise ValueError(f"layer {layer} has no experts")
        return Chunk(int(self._files[at]), int(self._offsets[at]), n_bytes, QuantType(int(self._types[at])))

    def span(self, layer: int, expert: int) -> Span | None:
        """The whole expert as one read, if gate, up and down follow each other with no more than alignment between;
        else None.
        """
        at = layer, expert
        files, offsets, n_bytes = self._files[at], self._offsets[at], self._n_bytes[at]
        gaps = offsets[1:] - (offsets[:-1] + n_bytes[:-1])
        alignment = self._gguf.headers[int(files[0])].alignment
        if (files != files[0]).any() or (gaps < 0).any() or (gaps >= alignment).any():
            return None
        return Span(int(files[0]), int(offsets[0]), int(offsets[2] + n_bytes[2] - offsets[0]))

    def read_into(self, layer: int, expert: int, linear: int, out: np.ndarray) -> None:
        """Fill `out` (uint8, contiguous, as long as the chunk). Raises ReadFailure naming layer, expert and
        projection.
        """
        chunk = self.chunk(layer, expert, linear)
        if out.size != chunk.n_bytes:
            raise ValueError(f"out holds {out.size} bytes, the matrix has {chunk.n_bytes}")
        what = f"{LINEARS[linear]} of expert {expert} in layer {layer}"
        self._gguf.read_bytes(chunk.file_index, chunk.offset, out, what)

    def _matrix_shape(self, linear: int) -> tuple[int, int]:
        """(row length, rows) of a projection."""
        hidden, width = self._config.hidden_size, self._config.moe_intermediate_size
        return (width, hidden) if LINEARS[linear] == "down" else (hidden, width)

    def _place(self, layer: int, linear: int) -> None:
        tensors, noun = self._gguf.tensors, LINEARS[linear]
        stacked = tensors.get(f"blk.{layer}.ffn_{noun}_exps.weight")
        fused = tensors.get(f"blk.{layer}.ffn_gate_up_exps.weight") if noun != "down" else None
        single = f"blk.{layer}.ffn_{noun}.0.weight" in tensors
        if sum((stacked is not None, fused is not None, single)) > 1:
            raise self._error(layer, f"the {noun} matrices are there in two layouts")
        if stacked is not None:
            self._place_stack(layer, linear, stacked, 0, 1)
        elif fused is not None:
            self._place_stack(layer, linear, fused, linear, 2)
        else:
            for expert in range(self.num_experts):
                info = tensors.get(f"blk.{layer}.ffn_{noun}.{expert}.weight")
                if info is None:
                    name = f"blk.{layer}.ffn_{noun}.{expert}.weight"
                    raise self._error(layer, f"expert {expert} has no {noun} matrix: tensor '{name}' is missing")
                self._check_shape(layer, info, self._matrix_shape(linear))
                self._set((layer, expert, linear), info, info.offset, info.n_bytes)

    def _place_stack(self, layer: int, linear: int, info: TensorInfo, part: int, n_parts: int) -> None:
        """Slices of a stack [row length, n_parts * rows, experts] whose matrices hold `n_parts` projections, this one
        `part`-th.
        """
        row_length, rows = self._matrix_shape(linear)
        self._check_shape(layer, info, (row_length, n_parts * rows, self.num_experts))
        stride = info.n_bytes // self.num_experts
        n_bytes = stride // n_parts
        for expert in range(self.num_experts):
            self._set((layer, expert, linear), info, info.offset + expert * stride + part * n_bytes, n_bytes)

    def _set(self, at: tuple[int, int, int], info: TensorInfo, offset: int, n_bytes: int) -> None:
        self._files[at], self._types[at] = info.file_index, info.quant_type
        self._offsets[at], self._n_bytes[at] = offset, n_bytes

    def _check_shape(self, layer: int, info: TensorInfo, shape: tuple[int, ...]) -> None:
        # Writers may leave out a last dimension of 1.
        if info.shape + (1,) * (len(shape) - len(info.shape)) != shape:
            raise self._error(
                layer, f"tensor '{info.name}' has shape {list(info.shape)}, the metadata says {list(shape)}"
            )

    def _refuse_leftovers(self) -> None:
        """Refuse expert tensors that the config knows nothing of: more layers, more experts."""
        for name in self._gguf.tensors:
            if not is_expert_tensor(name) or self._config.is_of_unused_layer(name):
                continue
            numbers = [int(part) for part in name.split(".") if part.isdecimal()]
            if numbers[0] not in self._moe_layers or (len(numbers) > 1 and numbers[1] >= self.num_experts):
                raise self._error(
                    numbers[0],
                    f"tensor '{name}' has no place among {self.num_layers} layers of {self.num_experts} experts",
                )

    def _error(self, layer: int, message: str) -> GGUFError:
        return GGUFError(f"{self.paths[0]}: layer {layer}: {message}")
