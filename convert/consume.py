"""`--consume`: every weight file of a Hugging Face folder is deleted as soon as what came from it is safe on the disk.

Safe means: in a synced partial file, and in the journal. Because planning reads the weights, the plan is kept in a
record beside the partial files before the first deletion; a rerun of the same command goes on by the record and needs
only the weight files that are left.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convert.gguf_layout import FileLayout, OutputTensor
from convert.plan import ConvertOptions, Plan, names_a_file
from convert.rows import Fp8Rows, OpenFile, Rows
from convert.shard_plan import expert_of
from convert.source import Source, SourceTensor
from convert.stacks import stack_name
from kernels.quant_types import QuantType
from models.errors import ConversionError, UsageError

_SUFFIX = ".consume.partial"


@dataclass(slots=True)
class Consumption:
    """Deletes weight files of `plan` while it is written. `last_needed`: by file, the last output file that takes from
    it; files that nothing takes from go with the last.
    """

    record: Path
    last_needed: dict[Path, int]
    files: dict[Path, list[OpenFile]]
    frees: list[int] = field(default_factory=list)

    def after(self, layout_index: int) -> None:
        """Delete what only output files up to `layout_index`, which are safe now, were made from. Raises OSError."""
        for path, last in self.last_needed.items():
            if last <= layout_index:
                for file in self.files.get(path, []):
                    file.close()  # a deleted file keeps its space while it is open
                path.unlink(missing_ok=True)

    def finish(self) -> None:
        self.record.unlink(missing_ok=True)


def start(source: Source, folder: Path, plan: Plan, options: ConvertOptions) -> Consumption:
    """Write the record of `plan`, which is of a Hugging Face folder, and say what may be deleted when. Raises
    ConversionError.
    """
    last: dict[Path, int] = {}
    files: dict[Path, list[OpenFile]] = {}
    for index, layout in enumerate(plan.layouts):
        for output in layout.tensors:
            for part in plan.parts.get(output.name, []):
                for file, path in _files_of(part.rows):
                    last[path] = index
                    if file is not None and file not in files.setdefault(path, []):
                        files[path].append(file)
    for path in source.paths:
        last.setdefault(path, len(plan.layouts) - 1)
    record = _record_path(plan.layouts)
    _write_record(record, folder, plan, options)
    directory = record.parent
    frees = [
        sum(path.stat().st_size for path, at in last.items() if at == index and _same_disk(path, directory))
        for index in range(len(plan.layouts))
    ]
    return Consumption(record, last, files, frees)


def find_record(folder: Path, out: Path, options: ConvertOptions) -> dict[str, Any] | None:
    """The record that an earlier run with the same arguments left. Raises UsageError where it was another command's."""
    directory = out.parent if names_a_file(out) else out
    for path in sorted(directory.glob(f"*{_SUFFIX}")) if directory.is_dir() else []:
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue  # torn: nothing was deleted yet
        if not isinstance(found, dict) or found.get("source") != str(folder.resolve()):
            continue
        if found.get("options") != _options_text(options):
            raise UsageError(
                f"{path}: a conversion that deletes its source was begun with other options ({found.get('options')}); "
                "finish it with those"
            )
        return found
    return None


def resumed_plan(found: dict[str, Any], source: Source, out: Path) -> Plan:
    """The recorded plan, over what is left of the source."""
    directory = out.parent if names_a_file(out) else out
    layouts = [
        FileLayout(
            path=directory / entry["name"],
            tensors=tuple(OutputTensor(name, tuple(shape), QuantType(kind)) for name, shape, kind in entry["tensors"]),
            header=zlib.decompress(base64.b64decode(entry["header"])),
            offsets=tuple(entry["offsets"]),
            file_bytes=entry["file_bytes"],
            checksums_at=entry["checksums_at"],
        )
        for entry in found["layouts"]
    ]
    stacked = {tensor.name for layout in layouts for tensor in layout.tensors}
    parts: dict[str, list[SourceTensor]] = {}
    for tensor in source.tensors:
        name = tensor.name if tensor.name in stacked else stack_name(tensor.name)
        parts.setdefault(name, []).append(tensor)
    for members in parts.values():
        members.sort(key=lambda tensor: expert_of(tensor.name) or (0, 0, 0))
    return Plan(layouts, parts, found["fingerprint"], [])


def _files_of(rows: Rows) -> Iterator[tuple[OpenFile | None, Path]]:
    """The files that `rows` are read from."""
    while not hasattr(rows, "file"):
        rows = rows.base  # type: ignore[attr-defined]
    yield rows.file, rows.file.path
    if isinstance(rows, Fp8Rows) and rows.scales_from is not None:
        yield None, rows.scales_from


def _record_path(layouts: list[FileLayout]) -> Path:
    return layouts[0].path.with_name(layouts[0].path.name + _SUFFIX)


def _options_text(options: ConvertOptions) -> str:
    return f"--quant {options.quant} --recipe {options.recipe} " + " ".join(
        f"{name}={getattr(options, name)}" for name in ("merge", "shard_bytes", "imatrix", "expert_order")
    )


def _write_record(path: Path, folder: Path, plan: Plan, options: ConvertOptions) -> None:
    entries = [
        {
            "name": layout.path.name,
            "tensors": [[tensor.name, list(tensor.shape), int(tensor.quant_type)] for tensor in layout.tensors],
            "header": base64.b64encode(zlib.compress(layout.header)).decode("ascii"),
            "offsets": list(layout.offsets),
            "file_bytes": layout.file_bytes,
            "checksums_at": layout.checksums_at,
        }
        for layout in plan.layouts
    ]
    content = {
        "source": str(folder.resolve()),
        "options": _options_text(options),
        "fingerprint": plan.fingerprint,
        "layouts": entries,
    }
    fresh = path.with_name(path.name + ".new.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        raise ConversionError(f"{path}: cannot be written: {error.strerror}; nothing was deleted") from None


def _same_disk(path: Path, directory: Path) -> bool:
    while not directory.exists():
        directory = directory.parent
    return path.stat().st_dev == directory.stat().st_dev
