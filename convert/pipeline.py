"""Conversion from end to end: open the input, plan, stream it through the quantisers into the files.

Memory does not grow with the model: a few pieces of a few million weights are held at a time.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from convert.check_options import check_options
from convert.consume import Consumption, find_record, resumed_plan, start
from convert.gguf_layout import OutputTensor
from convert.imatrix import Floats, ImportanceMatrix, named_imatrix
from convert.open_source import open_source
from convert.plan import ConvertOptions, Plan, plan_conversion
from convert.quantize import quantize_q8_0_rows, quantize_rows
from convert.rows import Bytes
from convert.shard_writer import Progress, write_files
from convert.source import Source, SourceTensor
from convert.stream import Job
from kernels.quant_types import QuantType, row_bytes

_PIECE_WEIGHTS = 1 << 20
_PIECE_BYTES = 8 << 20


@contextmanager
def opened(path: Path, options: ConvertOptions) -> Iterator[Source]:
    """The input at `path`, closed afterwards. Raises what `open_source` raises, and UsageError for options that mean
    nothing for it.
    """
    source = open_source(path, options.allow_unmapped, options.with_vocab, options.pre)
    try:
        check_options(path, source, options)
        yield source
    finally:
        source.close()


def convert(
    source: Path,
    out_dir: Path,
    options: ConvertOptions,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> Path:
    """Convert `source` (Hugging Face folder, GGUF, any shard) into `out_dir` and return the path to open.

    `note` receives lines for the user (defaults used, fallbacks). Raises FileError, UnsupportedError, UsageError,
    ConversionError, DiskFullError; whatever happens, nothing unfinished has the name of a model.
    """
    if options.consume:
        found = find_record(source, out_dir, options)
        if found is not None:
            return _go_on_consuming(source, out_dir, options, found, progress)
    with opened(source, options) as opened_source:
        plan = plan_conversion(opened_source, out_dir, options)
        for line in [*opened_source.notes, *plan.notes]:
            if note is not None:
                note(line)
        consumption = start(opened_source, source, plan, options) if options.consume else None
        return write_plan(plan, options.threads, progress, consumption)


def _go_on_consuming(
    source: Path, out_dir: Path, options: ConvertOptions, found: dict[str, Any], progress: Progress | None
) -> Path:
    """Finish a conversion that has deleted part of its source."""
    from convert.hf_source import open_remains

    remains = open_remains(source)
    try:
        plan = resumed_plan(found, remains, out_dir)
        if options.imatrix is not None:
            plan = dataclasses.replace(plan, imatrix=named_imatrix(options.imatrix))
        return write_plan(plan, options.threads, progress, start(remains, source, plan, options))
    finally:
        remains.close()


def write_plan(
    plan: Plan, threads: int, progress: Progress | None, consumption: Consumption | None = None
) -> Path:
    """Write the files of `plan`; `threads` 0 means one for each core this process may use. `consumption` deletes what
    they were made from.
    """
    jobs = jobs_of(plan)
    threads = threads or usable_cores()
    if consumption is None:
        return write_files(plan.layouts, jobs, plan.fingerprint, threads, progress)
    path = write_files(
        plan.layouts, jobs, plan.fingerprint, threads, progress, None, consumption.frees, consumption.after
    )
    consumption.finish()
    return path


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs_of(plan: Plan) -> Callable[[OutputTensor], list[Job]]:
    """What gives the jobs of an output tensor of `plan`: their results, one after another, are its bytes."""
    return partial(_jobs, parts=plan.parts, imatrix=plan.imatrix)


def _jobs(
    tensor: OutputTensor, parts: dict[str, list[SourceTensor]], imatrix: ImportanceMatrix | None = None
) -> list[Job]:
    """The jobs that make `tensor`, a piece of rows each; rows that keep their type are copied as they are."""
    jobs: list[Job] = []
    for part in parts[tensor.name]:
        copies = part.rows.quant_type is tensor.quant_type
        size = row_bytes(tensor.quant_type, part.rows.n_cols)
        at_once = max(1, _PIECE_BYTES // size if copies else _PIECE_WEIGHTS // part.rows.n_cols)
        make: Callable[..., Bytes] = _copy
        if not copies:
            importance = None if imatrix is None else imatrix.rows_for(part.name, part.shape)
            make = partial(_convert, quant_type=tensor.quant_type, importance=importance)
        for first in range(0, part.rows.n_rows, at_once):
            jobs.append(partial(make, part, first, min(at_once, part.rows.n_rows - first)))
    return jobs


def _copy(part: SourceTensor, first: int, n: int) -> Bytes:
    return part.rows.raw(first, n)


def _convert(part: SourceTensor, first: int, n: int, quant_type: QuantType, importance: Floats | None) -> Bytes:
    if quant_type is QuantType.Q8_0 and part.rows.quant_type is QuantType.BF16:
        return quantize_q8_0_rows(part.rows.raw(first, n).view("<u2"), part.name)
    values = part.rows.floats(first, n)
    if importance is None:
        return quantize_rows(values, quant_type, part.name)
    each = part.rows.n_rows // importance.shape[0]
    borders = range((first // each + 1) * each, first + n, each)
    pieces = [
        quantize_rows(values[start - first : end - first], quant_type, part.name, importance[start // each])
        for start, end in pairwise([first, *borders, first + n])
    ]
    return np.concatenate(pieces)
