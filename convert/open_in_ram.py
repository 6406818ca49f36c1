"""Open anything that converts as a model whose shards are in host memory: nothing is written to a disk.

What opens is what `pearl convert` would have written, byte for byte, but for the checksums: weights that are made when
they are asked for have none, and the model says so by not having that key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from convert.gguf_layout import CHECKSUMS_KEY
from convert.host_shards import Allocate, HostShards
from convert.open_source import open_source
from convert.plan import ConvertOptions, Plan, plan_conversion
from convert.quantize import quantize_rows
from kernels.quant_types import block_size
from models.gguf import GGUFModel
from models.gguf_header import read_header


def open_in_ram(
    path: Path, options: ConvertOptions, allocate: Allocate, note: Callable[[str], None] | None = None
) -> GGUFModel:
    """The model that `path` becomes by `options`, with headers in place and no weight made yet; see `HostShards.fill`.

    `paths` of the model name files that do not exist, beside the source. Raises what planning a conversion raises.
    """
    source = open_source(path, options.allow_unmapped, options.with_vocab, options.pre)
    try:
        beside = path if path.is_dir() else path.parent
        plan = plan_conversion(source, beside, dataclasses.replace(options, in_ram=True))
        for line in [*source.notes, *plan.notes]:
            if note is not None:
                note(line)
        _make_quantisers_ready(plan)
        shards = HostShards(plan, allocate, source.close)
        headers = [
            read_header(partial(shards.header, index), layout.file_bytes, layout.path, index)
            for index, layout in enumerate(plan.layouts)
        ]
        for header in headers:
            del header.metadata[CHECKSUMS_KEY], header.kinds[CHECKSUMS_KEY]
    except BaseException:
        source.close()
        raise
    return GGUFModel([layout.path for layout in plan.layouts], shards, headers)


def _make_quantisers_ready(plan: Plan) -> None:
    """Compile what `fill` will need, so that the process already weighs what it will when its bytes are planned."""
    for quant_type in {tensor.quant_type for layout in plan.layouts for tensor in layout.tensors}:
        quantize_rows(np.zeros((1, block_size(quant_type)), np.float32), quant_type, "")
