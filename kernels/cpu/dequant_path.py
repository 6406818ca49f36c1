"""Quant types without a direct kernel, slowly: dequantise a slice of rows to float32, then take float dots."""

from __future__ import annotations

import ctypes

import numpy as np
from numba import njit, prange

from kernels.cpu.native_call import call_native
from kernels.cpu.parallel import num_threads
from kernels.cpu.type_table import TypeTable
from kernels.quant_types import QuantType, row_bytes
from kernels.reference.dequant import dequantize_rows

SLICE_BYTES = 4 << 20
"""Float32 bytes dequantised at a time: the slice is still in cache when it is read."""


@njit(nogil=True, cache=True, parallel=True)
def _float_rows(rows, w, n_rows, n_cols, n_tokens, x, x_stride, out, out_stride, n_parts):
    for part in prange(n_parts):
        low, high = part * n_rows // n_parts, (part + 1) * n_rows // n_parts
        if low < high:
            for t in range(n_tokens):
                out_row = out + t * out_stride + 4 * low
                call_native(rows, w + 4 * n_cols * low, 4 * n_cols, high - low, n_cols, x + t * x_stride, out_row)


def dots_dequantized(
    address: int, quant_type: QuantType, n_rows: int, x: np.ndarray, out: np.ndarray, types: TypeTable
) -> None:
    """out [T, n_rows] = x [T, n_cols] @ W^T for the blocks at `address`; rows of x and out may lie apart, out is
    written.
    """
    n_tokens, n_cols = x.shape
    n_bytes = row_bytes(quant_type, n_cols)
    step = max(1, SLICE_BYTES // (4 * n_cols))
    rows = int(types.rows[QuantType.F32, 0])
    for first in range(0, n_rows, step):
        n = min(step, n_rows - first)
        blocks = np.ctypeslib.as_array((ctypes.c_uint8 * (n * n_bytes)).from_address(address + first * n_bytes))
        floats = dequantize_rows(blocks.reshape(n, n_bytes), quant_type, n_cols)
        _float_rows(
            rows,
            floats.ctypes.data,
            n,
            n_cols,
            n_tokens,
            x.ctypes.data,
            x.strides[0],
            out.ctypes.data + 4 * first,
            out.strides[0],
            num_threads(),
        )
