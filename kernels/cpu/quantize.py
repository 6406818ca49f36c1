"""Vectorised quantisers: float32 rows to GGUF blocks. Threads are the caller's: everything here releases the GIL.

Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and MXFP4 are bit for bit what `gguf.quants` (the slow twin) and ggml's reference give.
The K types and IQ4_NL search for scales of least weighted error; they have no twin and are measured by their error. An
importance matrix changes what weights count there, and makes the 4- and 5-bit legacy types search too.
Nothing here checks for NaN. numba is imported with the first type that needs it: Q8_0 does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from kernels.cpu.quantize_q8_0 import quantize_q8_0
from kernels.quant_types import QuantType, row_bytes

Quantizer = Callable[..., np.ndarray]
# These take notice of an importance matrix, as in ggml.
WEIGHTED_TYPES = (
    QuantType.Q4_0,
    QuantType.Q4_1,
    QuantType.Q5_0,
    QuantType.Q5_1,
    QuantType.Q2_K,
    QuantType.Q3_K,
    QuantType.Q4_K,
    QuantType.Q5_K,
    QuantType.Q6_K,
    QuantType.IQ4_NL,
)
TYPES = (QuantType.Q8_0, *WEIGHTED_TYPES, QuantType.MXFP4)


@cache
def _searching() -> dict[QuantType, Quantizer]:
    """Quantisers f(x) or f(x, importance)."""
    from kernels.cpu.quantize_iq import quantize_iq4_nl
    from kernels.cpu.quantize_k import quantize_q2_k, quantize_q4_k, quantize_q5_k
    from kernels.cpu.quantize_k_signed import quantize_q3_k, quantize_q6_k

    return {
        QuantType.Q2_K: quantize_q2_k,
        QuantType.Q3_K: quantize_q3_k,
        QuantType.Q4_K: quantize_q4_k,
        QuantType.Q5_K: quantize_q5_k,
        QuantType.Q6_K: quantize_q6_k,
        QuantType.IQ4_NL: quantize_iq4_nl,
    }


@cache
def _rounding() -> dict[QuantType, Quantizer]:
    """Quantisers f(x) of the types whose weights are rounded where nothing weighs them."""
    from kernels.cpu.quantize_legacy import quantize_q4_0, quantize_q4_1, quantize_q5_0, quantize_q5_1
    from kernels.cpu.quantize_mxfp4 import quantize_mxfp4

    return {
        QuantType.Q4_0: quantize_q4_0,
        QuantType.Q4_1: quantize_q4_1,
        QuantType.Q5_0: quantize_q5_0,
        QuantType.Q5_1: quantize_q5_1,
        QuantType.MXFP4: quantize_mxfp4,
    }


@cache
def _weighted() -> dict[QuantType, Quantizer]:
    """Quantisers f(x, importance) of the same types."""
    from kernels.cpu.quantize_legacy_weighted import quantize_offset, quantize_signed

    return {
        QuantType.Q4_0: partial(quantize_signed, half=8),
        QuantType.Q4_1: partial(quantize_offset, top=15),
        QuantType.Q5_0: partial(quantize_signed, half=16),
        QuantType.Q5_1: partial(quantize_offset, top=31),
    }


def quantize_blocks(x: np.ndarray, quant_type: QuantType, importance: np.ndarray | None = None) -> np.ndarray:
    """`x` float32 [n_rows, n_cols] as fresh uint8 [n_rows, row_bytes]. `importance` float32 [n_cols], above 0: how much
    an error in each column counts.

    Raises ValueError for a type without a quantiser.
    """
    if quant_type not in TYPES:
        raise ValueError(f"no quantiser for {quant_type.name}; there are: {', '.join(t.name for t in TYPES)}")
    size = row_bytes(quant_type, x.shape[1])
    x = np.ascontiguousarray(x, dtype=np.float32)
    return _quantized(x, quant_type, importance).reshape(x.shape[0], size)


def _quantized(x: np.ndarray, quant_type: QuantType, importance: np.ndarray | None) -> np.ndarray:
    if quant_type is QuantType.Q8_0:
        return quantize_q8_0(x)[0]
    weighs = importance is not None and quant_type in WEIGHTED_TYPES
    if quant_type in _searching():
        search = _searching()[quant_type]
        return search(x, importance) if weighs else search(x)
    return _weighted()[quant_type](x, importance) if weighs else _rounding()[quant_type](x)
