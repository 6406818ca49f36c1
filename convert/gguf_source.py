"""Any GGUF as a conversion source: stock stacked experts, fused gate and up, or one tensor an expert.

Bytes and metadata are taken over as they are; nothing is requantised here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gguf.constants import GGUFValueType

from convert.gguf_metadata import Metadata
from convert.rows import FileRows, OpenFile, Rows, Slice
from convert.source import Source, SourceTensor, check_experts, expert_name
from models.config_checks import refuse_other_kinds
from models.errors import GGUFError, UnsupportedTokenizer, UsageError
from models.gguf import GGUFModel, StringArray, TensorInfo

_STACKED = re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.weight$")
_SINGLE = re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight$")
_DROPPED = ("split.no", "split.count", "split.tensors.count", "pearl.tensor_checksums", "pearl.set_id")
_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")


def open_gguf(path: Path, pre: str | None = None) -> Source:
    """Open the model that `path` is or is a member of; `pre` names its pre-tokenizer instead of what the file says.

    Raises FileError, GGUFError, UnsupportedQuantType, UnsupportedError for what is no whole model, UsageError and
    UnsupportedTokenizer for a `pre` that does not apply or is not known.
    """
    with GGUFModel.open(path) as model:
        refuse_other_kinds(model)
        metadata = _copy_metadata(model)
        if pre is not None:
            _set_pre(metadata, pre, path)
        files = [OpenFile(member) for member in model.paths]
        architecture = model.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise GGUFError(f"{path}: no general.architecture; this GGUF holds no model")
        tensors = []
        found: dict[int, set[tuple[int, str]]] = {}
        for info in model.tensors.values():
            for tensor in _normal_form(info, files[info.file_index], path):
                tensors.append(tensor)
                single = _SINGLE.match(tensor.name)
                if single:
                    found.setdefault(int(single[1]), set()).add((int(single[3]), single[2]))
        num_experts, experts_used = (
            _count(model, f"{architecture}.{key}") for key in ("expert_count", "expert_used_count")
        )
        check_experts(found, num_experts, str(path))
        paths = list(model.paths)

    def close() -> None:
        for file in files:
            file.close()

    return Source(
        name=_SHARD_SUFFIX.sub("", paths[0].stem),
        architecture=architecture,
        metadata=metadata,
        tensors=tensors,
        tied=all(tensor.name != "output.weight" for tensor in tensors),
        is_gguf=True,
        paths=paths,
        num_experts=num_experts,
        experts_used=experts_used,
        close=close,
    )


def _set_pre(metadata: Metadata, pre: str, path: Path) -> None:
    from models.pre_tokenizers import find_pre_tokenizer

    if metadata.text("tokenizer.ggml.model") != "gpt2":
        raise UsageError(f"--pre {pre} is for byte-level BPE, and {path} holds no such vocabulary; leave it out")
    try:
        find_pre_tokenizer(pre)
    except UnsupportedTokenizer as error:
        raise UnsupportedTokenizer(f"--pre {pre} for {path}: {error}") from error
    metadata.string("tokenizer.ggml.pre", pre)
    metadata.remove("pearl.tokenizer.splits")


def _count(model: GGUFModel, key: str) -> int:
    value = model.metadata.get(key, 0)
    if type(value) is not int or value < 0:
        raise GGUFError(f"{model.paths[0]}: {key} is {value!r}, not a whole number")
    return value


def _normal_form(info: TensorInfo, file: OpenFile, path: Path) -> list[SourceTensor]:
    """`info` as it is, or cut into its experts (and into gate and up where they are fused, gate first as in
    llama.cpp).
    """
    rows = FileRows(file, info.offset, info.n_rows, info.n_cols, info.quant_type)
    stacked = _STACKED.match(info.name)
    if not stacked:
        return [SourceTensor(info.name, info.shape, rows)]
    if len(info.shape) != 3:
        raise GGUFError(f"{path}: tensor {info.name} has {len(info.shape)} dimensions; stacked experts have 3")
    n_cols, rows_each, num_experts = info.shape
    linears = ("gate", "up") if stacked[2] == "gate_up" else (stacked[2],)
    if rows_each % len(linears):
        raise GGUFError(f"{path}: tensor {info.name} has {rows_each} rows an expert; gate and up need an even number")
    n_rows = rows_each // len(linears)
    return [
        SourceTensor(
            expert_name(int(stacked[1]), expert, linear),
            (n_cols, n_rows),
            _slice(rows, expert * rows_each + part * n_rows, n_rows),
        )
        for part, linear in enumerate(linears)
        for expert in range(num_experts)
    ]


def _slice(rows: Rows, start: int, n_rows: int) -> Rows:
    return Slice(rows, start, n_rows)


def _copy_metadata(model: GGUFModel) -> Metadata:
    metadata = Metadata()
    for key, value in model.metadata.items():
        if key not in _DROPPED:
            kind = model.kinds[key]
            _set(metadata, key, value, kind.type)
    return metadata


def _set(metadata: Metadata, key: str, value: Any, value_type: GGUFValueType) -> None:
    if isinstance(value, StringArray):
        metadata.packed_strings(key, len(value), value.packed)
    elif value_type is GGUFValueType.ARRAY:
        metadata.array(key, value)
    elif value_type is GGUFValueType.STRING:
        metadata.string(key, value)
    else:
        metadata.number(key, value, value_type)
