"""Split sets: which files belong together, found from any member and checked before a weight is read.

A set is NAME-00001-of-0000N.gguf .. with `split.no`, `split.count`, `split.tensors.count` in each member. The keys
decide, never the name alone: a file merely named like a member is a file of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from models.errors import GGUFError
from models.gguf_cursor import show
from models.gguf_header import Header

SPLIT_NO = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"
MAX_PARTS = 65535
_LISTED = 40
_MEMBER_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
# Later members repeat some of the first one's identity, or none of it; what they repeat must agree.
_IDENTITY_KEYS = ("general.architecture", "general.name", "pearl.set_id")


def name_of_whole(path: Path) -> str:
    """NAME of NAME.gguf or NAME-00001-of-000NN.gguf: what files beside a model are named after. Goes by `path` alone.
    """
    return re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)


def member_paths(path: Path, header: Header) -> list[Path]:
    """All files of the set that `path` belongs to, in order; just `path` for a file of its own.

    Raises GGUFError if the name contradicts the keys, members are missing (all are named) or parts were joined into
    one file.
    """
    count = split_key(path, header, SPLIT_COUNT, 0)
    if count <= 1:
        return [path]
    refuse_concatenation(path, header)
    number = split_key(path, header, SPLIT_NO)
    match = _MEMBER_NAME.fullmatch(path.name)
    if match is None:
        raise GGUFError(
            f"{path}: part {number + 1} of a set of {count}, but not named so; give it its name "
            f"...-{number + 1:05d}-of-{count:05d}.gguf back, beside the other parts"
        )
    if int(match["count"]) != count or count > MAX_PARTS:
        raise GGUFError(
            f"{path}: the name says {int(match['count'])} parts, {SPLIT_COUNT} says {count}; download it again"
        )
    paths = [path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    _check_all_present(path, paths)
    return paths


def check_members(paths: list[Path], headers: list[Header]) -> None:
    """Check that the members are parts of one model. Raises GGUFError naming the file that is not."""
    first = headers[0]
    declared = split_key(paths[0], first, SPLIT_TENSORS)
    for index, (path, header) in enumerate(zip(paths, headers, strict=True)):
        _check_number(path, header, index)
        count = split_key(path, header, SPLIT_COUNT)
        if count != len(paths):
            raise GGUFError(f"{path}: says it belongs to a set of {count}, the others to one of {len(paths)}")
        refuse_concatenation(path, header)
        if split_key(path, header, SPLIT_TENSORS) != declared:
            raise GGUFError(f"{path}: belongs to another model than {paths[0].name} ({SPLIT_TENSORS} differs)")
        for key in _IDENTITY_KEYS:
            ours, theirs = first.metadata.get(key), header.metadata.get(key)
            if ours is not None and theirs is not None and str(ours) != str(theirs):
                raise GGUFError(f"{path}: belongs to another model than {paths[0].name} ({key} differs)")
    present = sum(len(header.tensors) for header in headers)
    if present != declared:
        raise GGUFError(
            f"{paths[0]}: the set declares {declared} tensors, its {len(paths)} files hold {present}: "
            "a part belongs to another model or is damaged; download the set again"
        )


def check_unique(paths: list[Path], headers: Iterable[Header]) -> None:
    """Raise GGUFError if two members hold a tensor of the same name."""
    home: dict[str, int] = {}
    for index, header in enumerate(headers):
        for tensor in header.tensors:
            other = home.setdefault(tensor.name, index)
            if other != index:
                raise GGUFError(
                    f"{paths[index]}: tensor {show(tensor.name)} is also in {paths[other].name}: part of another model?"
                )


def split_key(path: Path, header: Header, key: str, default: int | None = None) -> int:
    """A split key as an int >= 0 (writers use u16, u32 and i32)."""
    value = header.metadata.get(key, default)
    if value is None:
        raise GGUFError(f"{path}: a part of a split set without {key}; download it again")
    if type(value) is not int or value < 0:
        raise GGUFError(f"{path}: {key} must be a whole number, not {show(str(value))}")
    return value


def refuse_concatenation(path: Path, header: Header) -> None:
    """Raise GGUFError if another GGUF header follows the last tensor: parts of a set joined with `cat`."""
    if header.file_bytes <= header.data_end:
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        rest = os.pread(fd, header.alignment + 8, header.data_end)
    finally:
        os.close(fd)
    if b"GGUF" in rest:
        raise GGUFError(
            f"{path}: a concatenated split: another GGUF starts after the first one's data; use the parts as before, "
            "or join them with llama-gguf-split --merge"
        )


def _check_number(path: Path, header: Header, expected: int) -> None:
    number = split_key(path, header, SPLIT_NO)
    if number != expected:
        raise GGUFError(
            f"{path}: named as part {expected + 1} but {SPLIT_NO} is {number} (part {number + 1}): swapped files?"
        )


def _check_all_present(path: Path, paths: list[Path]) -> None:
    missing = [p.name for p in paths if not p.exists()]
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        names = ", ".join(missing[:_LISTED])
        raise GGUFError(f"{path}: {len(missing)} of {len(paths)} parts are missing in {path.parent}: {names}{more}")
