"""Rows of the embedding table, dequantised: compiled for the usual types, by the format's own numpy code for others."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

from kernels.backend import Weight
from kernels.cpu.decode_rows import DECODED_TYPES, decode_row_address
from kernels.cpu.recycled import new_rows
from kernels.quant_types import QuantType, block_size
from kernels.reference.embed import embed_ref

_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


@cache
def _decode(quant_type: QuantType) -> Callable[[int, int, int], None]:
    """A few rows a call, so that the way through ctypes (one microsecond) costs less than compiling a numba loop."""
    return _PROTOTYPE(decode_row_address(quant_type))


def embed(table: Weight, token_ids: np.ndarray) -> np.ndarray:
    """Rows `token_ids` int64 [T] of `table` as fresh float32 [T, D]. Raises ValueError for an id outside the table."""
    floats = table.quant_type == QuantType.F32
    if not floats and table.quant_type not in DECODED_TYPES:
        return embed_ref(table, token_ids)
    ids = token_ids.tolist()
    if ids and not 0 <= min(ids) <= max(ids) < table.n_rows:
        raise ValueError(f"token ids must lie in 0..{table.n_rows - 1}, got {min(ids)}..{max(ids)}")
    out = new_rows(len(ids), table.n_cols)
    if floats:
        rows = table.data.view(np.float32)
        for i, token_id in enumerate(ids):
            out[i] = rows[token_id]
        return out
    decode = _decode(table.quant_type)
    first, n_bytes, n_blocks = table.data.ctypes.data, table.data.shape[1], table.n_cols // block_size(table.quant_type)
    row, row_bytes = out.ctypes.data, 4 * table.n_cols
    for i, token_id in enumerate(ids):
        decode(first + token_id * n_bytes, row + i * row_bytes, n_blocks)
    return out
