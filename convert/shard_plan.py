"""Which tensor goes into which file: the pearl shard set of DESIGN's file format, or one stock GGUF.

A pearl set keeps metadata and every non-expert tensor in shard 1 and experts in the others, each expert's gate, up and
down side by side on 4096-byte borders, so that one linear is one aligned read and one expert one span. No expert is
cut by a shard border.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from convert.gguf_layout import FileLayout, OutputTensor, align_up, lay_out
from convert.gguf_metadata import Metadata
from models.errors import UsageError

PEARL_ALIGNMENT = 4096
STOCK_ALIGNMENT = 32
FORMAT_VERSION = 1
EXPERT_LAYOUT = "per_expert"
DEFAULT_SHARD_BYTES = 4 << 30
SET_ID_KEY = "pearl.set_id"
MAX_SHARDS = 65535  # split.count is 16 bits wide

_EXPERT = re.compile(r"^blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight$")
_LINEAR_ORDER = {"gate": 0, "up": 1, "down": 2}


def expert_of(name: str) -> tuple[int, int, int] | None:
    """(layer, expert, 0 gate | 1 up | 2 down) of a per-expert tensor name, else None."""
    found = _EXPERT.match(name)
    return (int(found[1]), int(found[3]), _LINEAR_ORDER[found[2]]) if found else None


def plan_pearl_set(
    out_dir: Path,
    name: str,
    metadata: Metadata,
    tensors: list[OutputTensor],
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    expert_order: Sequence[Sequence[int]] | None = None,
) -> list[FileLayout]:
    """Files of the pearl set `out_dir/name-00001-of-000NN.gguf`; `tensors` may come in any order. `expert_order`: each
    layer's experts as they shall follow each other, else by number. `pearl.set_id`, where
    `metadata` has it, stands in every file, so that a file of another conversion is known.
    """
    dense = [tensor for tensor in tensors if expert_of(tensor.name) is None]
    places = None if expert_order is None else [{e: at for at, e in enumerate(row)} for row in expert_order]

    def key(tensor: OutputTensor) -> tuple[int, int, int]:
        layer, expert, linear = _expert_key(tensor)
        return layer, expert if places is None else places[layer][expert], linear

    experts = sorted((tensor for tensor in tensors if expert_of(tensor.name) is not None), key=key)
    groups = [dense, *_cut_between_experts(experts, shard_bytes)]
    metadata = metadata.copy()
    metadata.u32("pearl.format_version", FORMAT_VERSION)
    metadata.string("pearl.expert_layout", EXPERT_LAYOUT)
    return _lay_out_split(out_dir, name, metadata, groups, PEARL_ALIGNMENT)


def plan_stock_file(
    out_dir: Path, name: str, metadata: Metadata, tensors: list[OutputTensor], shard_bytes: int | None = None
) -> list[FileLayout]:
    """One stock GGUF `out_dir/name.gguf`, or a stock split set where `shard_bytes` is given and exceeded."""
    metadata = metadata.copy()
    for key in ("pearl.format_version", "pearl.expert_layout", "split.no", "split.count", "split.tensors.count"):
        metadata.remove(key)
    groups: list[list[OutputTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shard_bytes is not None and groups[-1] and filled + tensor.n_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += align_up(tensor.n_bytes, STOCK_ALIGNMENT)
    if len(groups) == 1:
        metadata.remove(SET_ID_KEY)
        return [lay_out(out_dir / f"{name}.gguf", metadata, tensors, STOCK_ALIGNMENT)]
    return _lay_out_split(out_dir, name, metadata, groups, STOCK_ALIGNMENT)


def _expert_key(tensor: OutputTensor) -> tuple[int, int, int]:
    key = expert_of(tensor.name)
    assert key is not None
    return key


def _cut_between_experts(experts: list[OutputTensor], shard_bytes: int) -> list[list[OutputTensor]]:
    """Consecutive groups of whole experts, each at most `shard_bytes` unless a single expert is larger."""
    spans: dict[tuple[int, int], list[OutputTensor]] = {}
    for tensor in experts:
        spans.setdefault(_expert_key(tensor)[:2], []).append(tensor)
    groups: list[list[OutputTensor]] = []
    filled = 0
    for span in spans.values():
        span_bytes = sum(align_up(tensor.n_bytes, PEARL_ALIGNMENT) for tensor in span)
        if not groups or filled + span_bytes > shard_bytes:
            groups.append([])
            filled = 0
        groups[-1].extend(span)
        filled += span_bytes
    return groups


def _lay_out_split(
    out_dir: Path, name: str, metadata: Metadata, groups: list[list[OutputTensor]], alignment: int
) -> list[FileLayout]:
    if len(groups) > MAX_SHARDS:
        raise UsageError(
            f"{len(groups)} shards are more than the {MAX_SHARDS} that a split set can hold; raise --shard-size"
        )
    total = sum(len(group) for group in groups)
    layouts = []
    for index, group in enumerate(groups):
        own = metadata.copy() if index == 0 else _member_metadata(metadata)
        own.u16("split.no", index)
        own.u16("split.count", len(groups))
        own.i32("split.tensors.count", total)
        path = out_dir / f"{name}-{index + 1:05d}-of-{len(groups):05d}.gguf"
        layouts.append(lay_out(path, own, group, alignment))
    return layouts


def _member_metadata(metadata: Metadata) -> Metadata:
    """What shards after the first carry beside the split keys: enough to tell the model they belong to."""
    own = Metadata()
    for key in ("general.architecture", SET_ID_KEY):
        value = metadata.text(key)
        if value is not None:
            own.string(key, value)
    return own
