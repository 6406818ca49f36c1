"""A Hugging Face folder as a conversion source: tensors under GGUF names, experts one by one, metadata from its JSON
files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from convert.checkpoint_folder import find_tensors, read_json
from convert.gguf_metadata import Metadata
from convert.hf_config import HfConfig
from convert.hf_names import DROPPED, Experts, Plain, map_name
from convert.hf_template import add_chat_template
from convert.hf_tokenizer import add_tokenizer
from convert.model_metadata import ModelDims
from convert.rows import FileRows, Fp8Rows, OpenFile, RopePermuted, Rows, Slice
from convert.safetensors_header import Stored
from convert.source import Source, SourceTensor, check_experts, expert_name
from kernels.quant_types import QuantType
from models.errors import CheckpointError, UnsupportedError

_TYPES = {"F32": QuantType.F32, "F16": QuantType.F16, "BF16": QuantType.BF16}
_SCALE = "_scale_inv"
_COMPARE_ROWS = 1024


def open_hf_folder(
    folder: Path, allow_unmapped: bool = False, with_vocab: bool = True, pre: str | None = None
) -> Source:
    """Open the checkpoint in `folder`. Raises CheckpointError, UnsupportedError, UnsupportedTokenizer."""
    values = read_json(folder, "config.json", required=True)
    assert values is not None
    stored = find_tensors(folder)
    config = HfConfig(folder, values)
    dims = config.dims()
    metadata = Metadata()
    metadata.string("general.architecture", config.architecture)
    metadata.string("general.name", folder.resolve().name)
    metadata.u32("general.quantization_version", 2)
    config.add_metadata(metadata)
    builder = _Builder(folder, dims, stored, _fp8_block(folder, config))
    tensors = builder.build(allow_unmapped)
    notes = config.notes + builder.notes
    tied = _settle_output(tensors, config.flag("tie_word_embeddings"), notes)
    if with_vocab:
        add_tokenizer(metadata, folder, config.values, dims.vocab_size, pre)
        if not add_chat_template(metadata, folder):
            notes.append("the folder has no chat template; chatting needs --template")
    return Source(
        name=folder.resolve().name,
        architecture=config.architecture,
        metadata=metadata,
        tensors=sorted(tensors, key=_file_order),
        tied=tied,
        is_gguf=False,
        paths=sorted({tensor.path for tensor in stored.values()}),
        num_experts=dims.num_experts,
        experts_used=dims.num_experts_per_tok,
        notes=notes,
        close=builder.close,
    )


@dataclass(slots=True)
class _Builder:
    """Turns stored tensors into source tensors; `notes` and open files are collected on the way."""

    folder: Path
    dims: ModelDims
    stored: dict[str, Stored]
    fp8_block: tuple[int, int]
    notes: list[str] = field(default_factory=list)
    _files: dict[Path, OpenFile] = field(default_factory=dict)

    def build(self, allow_unmapped: bool) -> list[SourceTensor]:
        tensors: dict[str, SourceTensor] = {}
        unmapped = []
        for stored in self.stored.values():
            if DROPPED.search(stored.name) or (
                stored.name.endswith(_SCALE) and stored.name.removesuffix(_SCALE) in self.stored
            ):
                continue
            place = map_name(stored.name)
            layer = None if place is None else place.layer
            if place is None or (layer is not None and layer >= self.dims.num_layers):
                unmapped.append(stored.name)
                continue
            made = self._plain(stored, place) if isinstance(place, Plain) else self._experts(stored, place)
            for tensor in made:
                if tensor.name in tensors:
                    raise CheckpointError(f"{stored.path}: tensor '{stored.name}' gives {tensor.name} a second time")
                tensors[tensor.name] = tensor
        self._report_unmapped(unmapped, allow_unmapped)
        self._check_complete(tensors)
        return list(tensors.values())

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _report_unmapped(self, names: list[str], allowed: bool) -> None:
        if not names:
            return
        listing = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        if not allowed:
            raise UnsupportedError(
                f"{self.folder}: {len(names)} tensors have no place in a {self.dims.architecture} model: {listing}; "
                "--allow-unmapped leaves them behind"
            )
        self.notes.append(f"left behind, they have no place in a {self.dims.architecture} model: {listing}")

    def _check_complete(self, tensors: dict[str, SourceTensor]) -> None:
        """Every layer has its attention and either a router with all its experts or dense linears."""
        found: dict[int, set[tuple[int, str]]] = {}
        for name in tensors:
            parts = name.split(".")
            if len(parts) == 5 and parts[3].isdigit():
                found.setdefault(int(parts[1]), set()).add((int(parts[3]), parts[2].removeprefix("ffn_")))
        check_experts(found, self.dims.num_experts, str(self.folder))
        needed = ["token_embd.weight", "output_norm.weight"]
        for layer in range(self.dims.num_layers):
            needed += [
                f"blk.{layer}.{part}.weight"
                for part in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm")
            ]
            needed.append(
                f"blk.{layer}."
                + ("ffn_gate.weight" if f"blk.{layer}.ffn_gate.weight" in tensors else "ffn_gate_inp.weight")
            )
            if needed[-1].endswith("inp.weight") and layer not in found:
                raise CheckpointError(f"{self.folder}: layer {layer} has no experts")
        missing = [name for name in needed if name not in tensors]
        if missing:
            raise CheckpointError(f"{self.folder}: the checkpoint has nothing for {', '.join(missing[:8])}")

    def _plain(self, stored: Stored, place: Plain) -> list[SourceTensor]:
        n_cols = stored.shape[-1] if stored.shape else 1
        rows = self._rows(stored, math.prod(stored.shape[:-1]), n_cols)
        self._check_shape(stored, place)
        if (self.dims.architecture == "llama" and ".attn_q." in place.name) or (
            self.dims.architecture == "llama" and ".attn_k." in place.name
        ):
            if len(stored.shape) != 2:
                raise UnsupportedError(
                    f"{stored.path}: '{stored.name}': biases of q and k are not supported in this architecture"
                )
            rows = RopePermuted(rows, self.dims.head_dim)
        return [SourceTensor(place.name, tuple(reversed(stored.shape)), rows)]

    def _check_shape(self, stored: Stored, place: Plain) -> None:
        dims = self.dims
        query, key = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
        expected = {
            "token_embd.weight": (dims.vocab_size, dims.hidden_size),
            "output.weight": (dims.vocab_size, dims.hidden_size),
            "output_norm.weight": (dims.hidden_size,),
            "attn_norm.weight": (dims.hidden_size,),
            "ffn_norm.weight": (dims.hidden_size,),
            "attn_q.weight": (query, dims.hidden_size),
            "attn_k.weight": (key, dims.hidden_size),
            "attn_v.weight": (key, dims.hidden_size),
            "attn_output.weight": (dims.hidden_size, query),
            "ffn_gate_inp.weight": (dims.num_experts, dims.hidden_size),
        }.get(place.name.split(".", 2)[-1] if place.layer is not None else place.name)
        if expected is not None and stored.shape != expected:
            raise CheckpointError(
                f"{stored.path}: '{stored.name}' has shape {list(stored.shape)}; config.json makes it {list(expected)}"
            )

    def _experts(self, stored: Stored, place: Experts) -> list[SourceTensor]:
        """One source tensor for each expert and linear in `stored`."""
        hidden, width = self.dims.hidden_size, self.dims.moe_intermediate_size
        n_rows, n_cols = (hidden, width) if place.linears == ("down",) else (width, hidden)
        each = (n_rows * len(place.linears), n_cols)
        experts = [place.expert] if place.expert is not None else list(range(self.dims.num_experts))
        expected = each if place.expert is not None else (self.dims.num_experts, *each)
        if stored.shape != expected:
            raise CheckpointError(
                f"{stored.path}: '{stored.name}' has shape {list(stored.shape)}; config.json makes it {list(expected)}"
            )
        rows = self._rows(stored, math.prod(stored.shape[:-1]), n_cols)
        return [
            SourceTensor(
                expert_name(place.layer, expert, linear),
                (n_cols, n_rows),
                rows if rows.n_rows == n_rows else Slice(rows, index * each[0] + part * n_rows, n_rows),
            )
            for part, linear in enumerate(place.linears)
            for index, expert in enumerate(experts)
        ]

    def _rows(self, stored: Stored, n_rows: int, n_cols: int) -> Rows:
        file = (
            self._files.setdefault(stored.path, OpenFile(stored.path))
            if stored.path not in self._files
            else self._files[stored.path]
        )
        if stored.dtype in _TYPES:
            return FileRows(file, stored.offset, n_rows, n_cols, _TYPES[stored.dtype])
        if stored.dtype == "F8_E4M3":
            return self._fp8_rows(stored, file, n_rows, n_cols)
        raise UnsupportedError(
            f"{stored.path}: '{stored.name}' is stored as {stored.dtype}; "
            "supported: F32, F16, BF16, F8_E4M3 with block scales"
        )

    def _fp8_rows(self, stored: Stored, file: OpenFile, n_rows: int, n_cols: int) -> Rows:
        scale = self.stored.get(stored.name + _SCALE)
        if scale is None:
            raise CheckpointError(
                f"{stored.path}: '{stored.name}' is 8-bit but there is no '{stored.name}{_SCALE}' to scale it by"
            )
        blocks = (-(-n_rows // self.fp8_block[0]), -(-n_cols // self.fp8_block[1]))
        if len(stored.shape) != 2 or scale.shape != blocks:
            raise CheckpointError(
                f"{scale.path}: '{scale.name}' has shape {list(scale.shape)}; "
                f"blocks of {self.fp8_block} make it {list(blocks)}"
            )
        scales = self._rows(scale, *blocks).floats(0, blocks[0])
        return Fp8Rows(file, stored.offset, n_rows, n_cols, scales, self.fp8_block)


def _fp8_block(folder: Path, config: HfConfig) -> tuple[int, int]:
    """Rows and columns that share an 8-bit float scale. Raises UnsupportedError for other quantised checkpoints."""
    quantization = config.values.get("quantization_config")
    if quantization is None:
        return (128, 128)
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method != "fp8":
        raise UnsupportedError(
            f"{config.path}: quantised by {method!r}; supported: fp8 with block scales, or plain weights"
        )
    block = quantization.get("weight_block_size", [128, 128])
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
        raise UnsupportedError(f"{config.path}: weight_block_size {block!r} is not supported; two whole numbers are")
    return (block[0], block[1])


def _settle_output(tensors: list[SourceTensor], declared_tied: bool | None, notes: list[str]) -> bool:
    """Whether the embedding doubles as the output matrix. An output matrix equal to it is taken out of `tensors`."""
    embed = next(tensor for tensor in tensors if tensor.name == "token_embd.weight")
    output = next((tensor for tensor in tensors if tensor.name == "output.weight"), None)
    if output is None:
        if declared_tied is False:
            notes.append(
                "config.json says that the embedding is not tied, but there is no lm_head: the embedding is used"
            )
        return True
    if not _equal(embed.rows, output.rows):
        if declared_tied:
            notes.append("config.json says that the embedding is tied, but lm_head differs from it: lm_head is used")
        return False
    tensors.remove(output)
    notes.append("lm_head equals the embedding and is stored once")
    return True


def _equal(left: Rows, right: Rows) -> bool:
    if left.quant_type is None or left.quant_type is not right.quant_type or left.n_rows != right.n_rows:
        return False
    starts = range(0, left.n_rows, _COMPARE_ROWS)
    sizes = [min(_COMPARE_ROWS, left.n_rows - start) for start in starts]
    return all(np.array_equal(left.raw(at, n), right.raw(at, n)) for at, n in zip(starts, sizes, strict=True))


_ORDER = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output", "ffn_norm", "ffn_gate_inp",
    "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip


def _file_order(tensor: SourceTensor) -> tuple[int, int, int, int]:
    """Embedding, layers in the order they compute, output."""
    parts = tensor.name.split(".")
    if parts[0] != "blk":
        return (-1 if parts[0] == "token_embd" else 1 << 30, parts[0] == "output", 0, 0)
    expert = int(parts[3]) if parts[3].isdigit() else -1
    return (int(parts[1]), _ORDER.index(parts[2]), expert, parts[-1] == "bias")
