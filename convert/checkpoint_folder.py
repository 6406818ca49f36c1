"""A Hugging Face folder on disk: which safetensors files belong to the model, what they hold, and its small JSON files.

All shards are found and checked before any weight is read. Names are not interpreted here.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from convert.safetensors_header import Stored, read_safetensors_header
from models.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MAX_JSON_BYTES = 256 << 20


def find_tensors(folder: Path, whole: bool = True) -> dict[str, Stored]:
    """Every tensor of the checkpoint by name. Raises CheckpointError, naming all missing shards at once; with `whole`
    False shards may be missing.

    `consolidated.*` files, the same weights in their maker's own form, are left aside.
    """
    tensors: dict[str, Stored] = {}
    for path in _weight_files(folder, whole):
        for stored in read_safetensors_header(path):
            if stored.name in tensors:
                raise CheckpointError(f"{path}: tensor '{stored.name}' is also in {tensors[stored.name].path.name}")
            tensors[stored.name] = stored
    return tensors


def unlisted_files(folder: Path, used: set[Path]) -> list[str]:
    """Names of safetensors files in `folder` that are not among `used`; `consolidated.*` files are known and not told
    of.
    """
    found = (path for path in folder.glob("*.safetensors") if path not in used)
    return sorted(path.name for path in found if not path.name.startswith("consolidated"))


def read_json(folder: Path, name: str, required: bool = False) -> dict[str, Any] | None:
    """The JSON object in `folder/name`, None where there is no such file. Raises CheckpointError."""
    path = folder / name
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: no regular file")
        if status.st_size > _MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: larger than {_MAX_JSON_BYTES >> 20} MiB; that is no configuration file")
        raw = path.read_bytes()
    except FileNotFoundError:
        if required:
            raise CheckpointError(f"{path}: missing; a Hugging Face folder needs it") from None
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if raw.startswith(b"version https://git-lfs"):
        raise CheckpointError(f"{path}: a git-lfs pointer, not the file itself; run git lfs pull")
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: no valid JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: no JSON object; download it again")
    return value


def _weight_files(folder: Path, whole: bool) -> list[Path]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    index = read_json(folder, _INDEX)
    if index is not None:
        return _files_of_index(folder, index, whole)
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    found = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("consolidated"))
    if len(found) == 1 or not (found or whole):
        return found
    if found:
        raise CheckpointError(f"{folder}: {len(found)} safetensors files but no {_INDEX}; download the index too")
    if any(path for pattern in _PICKLES for path in folder.glob(pattern)):
        raise CheckpointError(
            f"{folder}: holds only pickles, which can run code and are not read; get the safetensors form"
        )
    raise CheckpointError(f"{folder}: no safetensors files; a Hugging Face folder or a GGUF file is expected")


def _files_of_index(folder: Path, index: dict[str, Any], whole: bool) -> list[Path]:
    weight_map = index.get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not all(isinstance(name, str) for name in weight_map.values())
        or not weight_map
    ):
        raise CheckpointError(f"{folder / _INDEX}: no weight_map; download it again")
    names = sorted(set(weight_map.values()))
    outside = [name for name in names if Path(name).name != name or name in ("", ".", "..")]
    if outside:
        raise CheckpointError(f"{folder / _INDEX}: names a file outside the folder: {outside[0]!r}")
    missing = [name for name in names if not (folder / name).exists()]
    if missing and whole:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(names)} shards are missing: {', '.join(missing)}; download them"
        )
    return [folder / name for name in names if name not in missing]
