"""What every kind of input becomes before it is converted: GGUF-named tensors, experts one by one, and GGUF
metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from convert.gguf_metadata import Metadata
from convert.rows import Rows
from models.errors import CheckpointError

LINEARS = ("gate", "up", "down")


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """One tensor under its GGUF name; `shape` in ggml order. An expert's linear is a tensor of its own."""

    name: str
    shape: tuple[int, ...]
    rows: Rows


@dataclass(slots=True)
class Source:
    """An opened input. `tensors` in file order; `tied`: the embedding doubles as output matrix; `experts_used` of
    `num_experts` compute a
    token; `notes` are lines for the user; `close` frees the files."""

    name: str
    architecture: str
    metadata: Metadata
    tensors: list[SourceTensor]
    tied: bool
    is_gguf: bool
    paths: list[Path]
    num_experts: int
    experts_used: int
    notes: list[str] = field(default_factory=list)
    close: Callable[[], None] = lambda: None


def expert_name(layer: int, expert: int, linear: str) -> str:
    """GGUF name of one expert's linear ("gate" | "up" | "down") in the per-expert layout."""
    return f"blk.{layer}.ffn_{linear}.{expert}.weight"


def check_experts(found: dict[int, set[tuple[int, str]]], num_experts: int, where: str) -> None:
    """Raise CheckpointError naming layer, expert and projection if a layer that has experts lacks one; `found` is by
    layer.
    """
    for layer, there in sorted(found.items()):
        for expert in range(num_experts):
            for linear in LINEARS:
                if (expert, linear) not in there:
                    raise CheckpointError(f"{where}: layer {layer} has no {linear} projection of expert {expert}")
        extra = sorted(there - {(expert, linear) for expert in range(num_experts) for linear in LINEARS})
        if extra:
            raise CheckpointError(
                f"{where}: layer {layer} has expert {extra[0][0]}, but the model declares {num_experts}"
            )
