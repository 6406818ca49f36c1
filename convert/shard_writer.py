"""Write the files of a layout so that nothing unfinished ever looks finished.

Everything goes to `*.partial`; each file is synced, and all are renamed at the end, the first shard last, because a
set without its first shard does not open. A journal beside them lets a rerun of the same job go on at the first tensor
that is not safely there. What the bytes are is the caller's affair: a callable gives each tensor's jobs.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from convert.gguf_layout import FileLayout, OutputTensor
from convert.journal import Journal
from convert.stream import Bytes, Job, in_order
from convert.write_behind import WriteBehind
from convert.writer_lock import LOCK_SUFFIX, only_writer
from kernels.cpu.crc32 import crc32
from models.errors import ConversionError, DiskFullError

JobsFor = Callable[[OutputTensor], list[Job]]
Progress = Callable[[int, int, str], None]  # bytes done, bytes in all, what is being written
_CHECK_BYTES = 8 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def partial_path(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def write_files(
    layouts: list[FileLayout],
    jobs_for: JobsFor,
    fingerprint: str,
    threads: int,
    progress: Progress | None = None,
    before_step: Callable[[str], None] | None = None,
    frees: Sequence[int] = (),
    on_safe: Callable[[int], None] | None = None,
) -> Path:
    """Write every file of `layouts` and return the path of the first. `on_safe` is called with a file's index once its
    data and the record of it are synced, and then frees `frees[index]` bytes of the same disk.

    `jobs_for(tensor)` gives jobs whose results, one after another, are the tensor's bytes. Raises DiskFullError before
    the first byte where space is short and when it runs out; ConversionError for other write failures; partial files
    then stay for a rerun. `before_step` is called with a name before each step that changes the disk (tests stop the
    run there).
    """
    directory = layouts[0].path.parent
    step = before_step or (lambda name: None)
    try:
        _make(directory)
        with only_writer(layouts[0].path.with_name(layouts[0].path.name + LOCK_SUFFIX)):
            journal = Journal.open(_journal_path(layouts), fingerprint)
            _keep_only_sound(layouts, journal)
            _check_space(layouts, directory, frees)
            step("journal")
            journal.start()
            try:
                _write_all(layouts, journal, jobs_for, threads, progress, step, on_safe)
                _finish(layouts, journal, step)
            finally:
                journal.close()
    except OSError as error:
        raise _as_conversion_error(error, layouts, directory) from error
    return layouts[0].path


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _FULL:
            raise
        raise ConversionError(
            f"{directory}: cannot be made a directory to write into: {error.strerror}; give another -o"
        ) from error


def _journal_path(layouts: list[FileLayout]) -> Path:
    return layouts[0].path.with_name(layouts[0].path.name + ".journal.partial")


def _keep_only_sound(layouts: list[FileLayout], journal: Journal) -> None:
    """Drop from the journal every tensor whose bytes on disk are not those it claims, so that only true claims are
    built on.
    """
    for file_index, layout in enumerate(layouts):
        claimed = [index for index in range(len(layout.tensors)) if (file_index, index) in journal.done]
        if not claimed:
            continue
        sound = _sound_tensors(partial_path(layout.path), layout, file_index, journal)
        if not sound and not partial_path(layout.path).exists():
            # Stopped while the files were given their names: this one had its own already.
            sound = _sound_tensors(layout.path, layout, file_index, journal)
            if len(sound) == len(layout.tensors):
                os.replace(layout.path, partial_path(layout.path))
            else:
                sound = set()
        for index in claimed:
            if index not in sound:
                del journal.done[file_index, index]


def _sound_tensors(path: Path, layout: FileLayout, file_index: int, journal: Journal) -> set[int]:
    """The tensors whose bytes in the file at `path` are those that the journal claims."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        if _same_header(file.read(len(layout.header)), layout):
            indices = range(len(layout.tensors))
            return {i for i in indices if journal.done.get((file_index, i)) == _crc_of(file.fileno(), layout, i)}
    return set()


def _same_header(found: bytes, layout: FileLayout) -> bool:
    """Whether `found` is the header of `layout`, its checksums filled in or not."""
    start, end = layout.checksums_at, layout.checksums_at + 4 * len(layout.tensors)
    return found[:start] == layout.header[:start] and found[end:] == layout.header[end:]


def _crc_of(descriptor: int, layout: FileLayout, index: int) -> int:
    """crc32 of tensor `index` as it is on disk, -1 where the file ends before it."""
    crc, at, left = 0, layout.offsets[index], layout.tensors[index].n_bytes
    while left:
        data = np.frombuffer(os.pread(descriptor, min(left, _CHECK_BYTES), at), np.uint8)
        if not data.size:
            return -1
        crc, at, left = crc32(data, crc), at + data.size, left - data.size
    return crc


def _check_space(layouts: list[FileLayout], directory: Path, frees: Sequence[int]) -> None:
    there = 0
    for layout in layouts:
        partial = partial_path(layout.path)
        there += partial.stat().st_blocks * 512 if partial.exists() else 0
    filled, need = -there, 0
    for index, layout in enumerate(layouts):
        filled += layout.file_bytes
        need = max(need, filled)
        filled -= frees[index] if frees else 0
    free = shutil.disk_usage(directory).free
    if need > free:
        raise DiskFullError(
            f"{directory}: no space: need {size_text(need)}, have {size_text(free)}; nothing was written"
        )


def _write_all(
    layouts: list[FileLayout],
    journal: Journal,
    jobs_for: JobsFor,
    threads: int,
    progress: Progress | None,
    step: Callable[[str], None],
    on_safe: Callable[[int], None] | None,
) -> None:
    missing = [
        (file_index, index)
        for file_index, layout in enumerate(layouts)
        for index in range(len(layout.tensors))
        if (file_index, index) not in journal.done
    ]
    total = sum(tensor.n_bytes for layout in layouts for tensor in layout.tensors)
    written = total - sum(layouts[f].tensors[t].n_bytes for f, t in missing)
    results = in_order((job for f, t in missing for job in jobs_for(layouts[f].tensors[t])), threads)
    for file_index, layout in enumerate(layouts):
        step("open")
        with _open_partial(
            layout, any((file_index, i) in journal.done for i in range(len(layout.tensors)))
        ) as descriptor:
            behind = WriteBehind(descriptor)
            for index, tensor in enumerate(layout.tensors):
                if (file_index, index) in journal.done:
                    continue
                step("tensor")
                crc = 0
                at, end = layout.offsets[index], layout.offsets[index] + tensor.n_bytes
                for data in _until(results, end - at, tensor.name):
                    _write_at(descriptor, data, at)
                    crc = crc32(data, crc)
                    at += data.nbytes
                    behind.written_to(at)
                    written += data.nbytes
                    if progress is not None:
                        progress(written, total, tensor.name)
                step("record")
                journal.add(file_index, index, crc)
            os.ftruncate(descriptor, layout.file_bytes)
            os.fsync(descriptor)
        journal.flush()
        if on_safe is not None:
            step("safe")
            on_safe(file_index)


def _until(results: Iterator[Bytes], n_bytes: int, name: str) -> Iterator[Bytes]:
    """The next results that make up `n_bytes`, as flat uint8.

    A tensor whose jobs give another size is our own fault.
    """
    while n_bytes > 0:
        data = np.ascontiguousarray(next(results)).reshape(-1).view(np.uint8)
        n_bytes -= data.nbytes
        if n_bytes < 0:
            raise ValueError(f"{name}: its jobs gave {-n_bytes} bytes more than its type and shape need")
        yield data


@contextmanager
def _open_partial(layout: FileLayout, keep: bool) -> Iterator[int]:
    """A descriptor of `layout`'s partial file with its header in place; `keep` leaves the data that is there."""
    flags = os.O_RDWR | os.O_CREAT | (0 if keep else os.O_TRUNC)
    descriptor = os.open(partial_path(layout.path), flags, 0o644)
    try:
        _write_at(descriptor, np.frombuffer(layout.header, dtype=np.uint8), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_at(descriptor: int, data: NDArray[np.generic], at: int) -> None:
    """Write all of `data` at byte `at`; the operating system may take it in several pieces."""
    view = data.data
    while view:
        n = os.pwrite(descriptor, view, at)
        view, at = view[n:], at + n


def _finish(layouts: list[FileLayout], journal: Journal, step: Callable[[str], None]) -> None:
    """Put the checksums into the headers, sync, and give every file its name.

    An older set of the same names loses its first shard before any other is replaced: no mixture of old and new ever
    opens.
    """
    for file_index, layout in enumerate(layouts):
        step("checksums")
        crcs = np.array([journal.done[file_index, i] for i in range(len(layout.tensors))], dtype="<u4")
        descriptor = os.open(partial_path(layout.path), os.O_RDWR)
        try:
            _write_at(descriptor, crcs.view(np.uint8), layout.checksums_at)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if len(layouts) > 1:
        step("retire")
        layouts[0].path.unlink(missing_ok=True)
    for layout in reversed(layouts):
        step("rename")
        os.replace(partial_path(layout.path), layout.path)
    _sync_directory(layouts[0].path.parent)
    step("clean")
    journal.close()
    journal.path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _as_conversion_error(error: OSError, layouts: list[FileLayout], directory: Path) -> ConversionError:
    if error.errno not in _FULL:
        return ConversionError(f"{error.filename or directory}: writing failed: {error.strerror or error}")
    need = sum(layout.file_bytes for layout in layouts)
    try:
        have = size_text(shutil.disk_usage(directory).free)
    except OSError:
        have = "an unknown amount"
    return DiskFullError(
        f"{directory}: no space: need {size_text(need)} in all, have {have} left; "
        "make room and rerun the same command to go on"
    )


def size_text(n_bytes: int) -> str:
    """`n_bytes` for people: 1536 -> '1.5 KiB'."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
