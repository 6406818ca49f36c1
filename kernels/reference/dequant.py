"""What the blocks of each quantisation type mean, as float32 rows.

The layouts are those of `gguf.quants`, the format's own Python code; this file only adds the shapes that pearl works
with. It is the definition that every direct kernel is measured against, and the plain path for types without one. It is
not fast.
"""

from __future__ import annotations

import ctypes

import numpy as np
from gguf import quants

from kernels.backend import Weight
from kernels.quant_types import QuantType, row_bytes


def dequantize_rows(data: np.ndarray, quant_type: QuantType, n_cols: int) -> np.ndarray:
    """uint8 blocks [..., row_bytes] as float32 [..., n_cols]; a fresh array except for F32, which is a view.

    Raises ValueError where the bytes of a row do not make `n_cols` weights, NotImplementedError for a type that has no
    float meaning.
    """
    n_bytes = row_bytes(quant_type, n_cols)
    if data.dtype != np.uint8 or data.shape[-1] != n_bytes:
        raise ValueError(f"{quant_type.name} rows of {n_cols} take {n_bytes} uint8, got {data.shape} {data.dtype}")
    if quant_type == QuantType.F32:
        return data.view(np.float32)
    if quant_type == QuantType.F16:
        return data.view(np.float16).astype(np.float32)
    # A block's scale may be any half float, also infinite: inf * 0 is that block's meaning, not this function's fault.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(quants.dequantize(data, quant_type), dtype=np.float32)


def dequantize_weight(weight: Weight) -> np.ndarray:
    """The whole matrix, float32 [n_rows, n_cols]."""
    return dequantize_rows(np.asarray(weight.data), weight.quant_type, weight.n_cols)


def matrix_at(address: int, quant_type: QuantType, n_rows: int, n_cols: int) -> np.ndarray:
    """The matrix of `quant_type` blocks that lies at `address` in this process, float32 [n_rows, n_cols].

    Raises ValueError for address 0, the mark of an expert that is not resident.
    """
    if address == 0:
        raise ValueError("the expert is not resident: its address is 0")
    n_bytes = n_rows * row_bytes(quant_type, n_cols)
    blocks = np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(address))
    return dequantize_rows(blocks.reshape(n_rows, -1), quant_type, n_cols)
