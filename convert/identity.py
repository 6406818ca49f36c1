"""What a conversion's files are called by: the name of their content, and the name of the job that makes them."""

from __future__ import annotations

import hashlib

from convert.gguf_layout import FileLayout, OutputTensor
from convert.gguf_metadata import Metadata
from convert.source import Source

_SAMPLE_BYTES = 1 << 16


def set_id(source: Source, metadata: Metadata, outputs: list[OutputTensor], extra: str) -> str:
    """Names what is in the files: the same for the same weights and options wherever they lie, another for any other
    model. Weights are told apart by samples of them.
    """
    digest = hashlib.sha256(metadata.encode() + extra.encode())
    for tensor in outputs:
        digest.update(f"{tensor.name} {tensor.shape} {tensor.quant_type.name}\n".encode())
    for path in source.paths:
        size = path.stat().st_size
        with path.open("rb") as file:
            for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def fingerprint(source: Source, layouts: list[FileLayout]) -> str:
    """Names this very job: same input files, same output bytes to come."""
    digest = hashlib.sha256()
    for path in source.paths:
        status = path.stat()
        digest.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
    for layout in layouts:
        digest.update(layout.path.name.encode() + b"\n" + layout.header)
    return digest.hexdigest()
