"""What the safetensors files of a folder store, as rows: plain floats, 8-bit floats with block scales, MXFP4 as gpt-oss
ships it. Where a tensor belongs in the model is not known here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from convert.expert_rows import Mxfp4Rows
from convert.rows import FileRows, Fp8Rows, OpenFile, Rows
from convert.safetensors_header import Stored
from kernels.quant_types import QuantType, block_size
from models.errors import CheckpointError, UnsupportedError

_TYPES = {"F32": QuantType.F32, "F16": QuantType.F16, "BF16": QuantType.BF16}
_SCALE = "_scale_inv"
_BLOCKS, _BLOCK_SCALES = "_blocks", "_scales"  # of MXFP4


@dataclass(slots=True)
class StoredRows:
    """`stored`: all tensors of the checkpoint by name; a file is opened when one of its tensors is first asked for."""

    stored: dict[str, Stored]
    fp8_block: tuple[int, int]
    _files: dict[Path, OpenFile] = field(default_factory=dict)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def is_scale(self, name: str) -> bool:
        """Whether `name` only scales another tensor, which takes it in."""
        if name.endswith(_BLOCK_SCALES):
            return name.removesuffix(_BLOCK_SCALES) + _BLOCKS in self.stored
        return name.endswith(_SCALE) and name.removesuffix(_SCALE) in self.stored

    def rows(self, stored: Stored, n_rows: int, n_cols: int) -> Rows:
        """`stored` as a matrix. Raises UnsupportedError for a type that is not read, CheckpointError for bad scales."""
        if stored.dtype in _TYPES:
            return FileRows(self._file(stored.path), stored.offset, n_rows, n_cols, _TYPES[stored.dtype])
        if stored.dtype == "F8_E4M3":
            return self._fp8_rows(stored, n_rows, n_cols)
        raise UnsupportedError(
            f"{stored.path}: '{stored.name}' is stored as {stored.dtype}; "
            "supported: F32, F16, BF16, F8_E4M3 with block scales"
        )

    def packed(self, stored: Stored, experts: int, n_rows: int, n_cols: int) -> Rows:
        """A stack of MXFP4 blocks, `n_rows` rows an expert. Raises CheckpointError."""
        scales = self.stored.get(stored.name.removesuffix(_BLOCKS) + _BLOCK_SCALES)
        if scales is None:
            raise CheckpointError(f"{stored.path}: '{stored.name}' has no '{_BLOCK_SCALES}' beside it to scale it by")
        n_blocks = n_cols // block_size(QuantType.MXFP4)
        check_shape(stored, (experts, n_rows, n_blocks, block_size(QuantType.MXFP4) // 2))
        check_shape(scales, (experts, n_rows, n_blocks))
        for tensor in (stored, scales):
            if tensor.dtype != "U8":
                raise CheckpointError(f"{tensor.path}: '{tensor.name}' is stored as {tensor.dtype}; MXFP4 needs U8")
        files = self._file(stored.path), self._file(scales.path)
        return Mxfp4Rows(files[0], stored.offset, files[1], scales.offset, experts * n_rows, n_cols)

    def _file(self, path: Path) -> OpenFile:
        if path not in self._files:
            self._files[path] = OpenFile(path)
        return self._files[path]

    def _fp8_rows(self, stored: Stored, n_rows: int, n_cols: int) -> Rows:
        scale = self.stored.get(stored.name + _SCALE)
        if scale is None:
            raise CheckpointError(
                f"{stored.path}: '{stored.name}' is 8-bit but there is no '{stored.name}{_SCALE}' to scale it by"
            )
        *stack, matrix_rows, _ = stored.shape if len(stored.shape) > 1 else (1, *stored.shape)
        blocks = (*stack, -(-matrix_rows // self.fp8_block[0]), -(-n_cols // self.fp8_block[1]))
        if scale.shape != blocks:
            raise CheckpointError(
                f"{scale.path}: '{scale.name}' has shape {list(scale.shape)}; "
                f"blocks of {self.fp8_block} make it {list(blocks)}"
            )
        n_scale_rows = math.prod(blocks[:-1])
        scales = self.rows(scale, n_scale_rows, blocks[-1]).floats(0, n_scale_rows)
        file = self._file(stored.path)
        return Fp8Rows(file, stored.offset, n_rows, n_cols, scales, self.fp8_block, matrix_rows, scale.path)


def check_shape(stored: Stored, expected: tuple[int, ...]) -> None:
    """Raise CheckpointError where `stored` is not what config.json makes it."""
    if stored.shape != expected:
        raise CheckpointError(
            f"{stored.path}: '{stored.name}' has shape {list(stored.shape)}; config.json makes it {list(expected)}"
        )
