"""The storage types of GGUF tensors: the only source of block sizes.

Ids and sizes come from the format's own table (`gguf.constants`), so a type that gguf-py learns needs no line here.
What a block means is in `kernels/reference/dequant.py`.
"""

from __future__ import annotations

from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as QuantType

__all__ = ["QuantType", "block_bytes", "block_size", "row_bytes"]


def block_size(quant_type: QuantType) -> int:
    """Number of weights in one block of `quant_type` (1 for plain numbers)."""
    return int(GGML_QUANT_SIZES[quant_type][0])


def block_bytes(quant_type: QuantType) -> int:
    """Bytes of one block of `quant_type`."""
    return int(GGML_QUANT_SIZES[quant_type][1])


def row_bytes(quant_type: QuantType, n_cols: int) -> int:
    """Bytes of one row of `n_cols` weights. Raises ValueError where blocks do not divide the row."""
    size, n_bytes = GGML_QUANT_SIZES[quant_type]
    if n_cols % size:
        raise ValueError(f"{quant_type.name} stores blocks of {size} weights; a row of {n_cols} does not divide")
    return int(n_cols // size * n_bytes)
