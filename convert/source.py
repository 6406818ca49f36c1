"""What every kind of input becomes before it is converted: GGUF-named tensors, experts one by one, and GGUF
metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from convert.gguf_metadata import Metadata
from convert.rows import Rows
from models.errors import CheckpointError, FileError

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


def open_source(path: Path, allow_unmapped: bool = False, with_vocab: bool = True, pre: str | None = None) -> Source:
    """Open a Hugging Face folder, a GGUF file or any member of a split set.

    `allow_unmapped` leaves tensors that have no GGUF name behind, with a note, instead of refusing; `with_vocab` False
    does without a tokenizer; `pre` names its pre-tokenizer. Raises FileError, CheckpointError, UnsupportedError.
    """
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs and not (path / "config.json").exists():
            return _open_gguf_folder(path, ggufs)
        from convert.hf_source import open_hf_folder

        return open_hf_folder(path, allow_unmapped, with_vocab, pre)
    from convert.gguf_source import open_gguf

    return open_gguf(path)


def _open_gguf_folder(folder: Path, ggufs: list[Path]) -> Source:
    """A folder that holds exactly one model."""
    from convert.gguf_source import open_gguf

    source = open_gguf(ggufs[0])
    others = {path.resolve() for path in ggufs} - {path.resolve() for path in source.paths}
    if others:
        source.close()
        raise FileError(f"{folder}: holds more than one model; name a file, such as {ggufs[0]}")
    return source
