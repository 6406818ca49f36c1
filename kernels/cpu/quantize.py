"""Vectorised quantisers: float32 rows to GGUF blocks. Threads are the caller's: everything here releases the GIL.

Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and MXFP4 are bit for bit what `gguf.quants` (the slow twin) and ggml's reference give.
The K types and IQ4_NL search for scales of least weighted error; they have no twin and are measured by their error. An
importance matrix changes what weights count there, and makes the 4- and 5-bit legacy types search too.
Nothing here checks for NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from gguf.quants import quantize

from kernels.cpu.quantize_iq import quantize_iq4_nl
from kernels.cpu.quantize_k import quantize_q2_k, quantize_q4_k, quantize_q5_k
from kernels.cpu.quantize_k_signed import quantize_q3_k, quantize_q6_k
from kernels.cpu.quantize_legacy import quantize_q4_0, quantize_q4_1, quantize_q5_0, quantize_q5_1, quantize_q8_0
from kernels.cpu.quantize_legacy_weighted import quantize_offset, quantize_signed
from kernels.quant_types import QuantType, row_bytes


def _quantize_mxfp4(x: np.ndarray) -> np.ndarray:
    return quantize(x, QuantType.MXFP4)


_QUANTIZERS: dict[QuantType, Callable[[np.ndarray], np.ndarray]] = {
    QuantType.Q8_0: quantize_q8_0,
    QuantType.Q4_0: quantize_q4_0,
    QuantType.Q4_1: quantize_q4_1,
    QuantType.Q5_0: quantize_q5_0,
    QuantType.Q5_1: quantize_q5_1,
    QuantType.Q2_K: quantize_q2_k,
    QuantType.Q3_K: quantize_q3_k,
    QuantType.Q4_K: quantize_q4_k,
    QuantType.Q5_K: quantize_q5_k,
    QuantType.Q6_K: quantize_q6_k,
    QuantType.IQ4_NL: quantize_iq4_nl,
    QuantType.MXFP4: _quantize_mxfp4,
}
TYPES = tuple(_QUANTIZERS)
_WEIGHTED: dict[QuantType, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    QuantType.Q4_0: partial(quantize_signed, half=8),
    QuantType.Q4_1: partial(quantize_offset, top=15),
    QuantType.Q5_0: partial(quantize_signed, half=16),
    QuantType.Q5_1: partial(quantize_offset, top=31),
    QuantType.Q2_K: quantize_q2_k,
    QuantType.Q3_K: quantize_q3_k,
    QuantType.Q4_K: quantize_q4_k,
    QuantType.Q5_K: quantize_q5_k,
    QuantType.Q6_K: quantize_q6_k,
    QuantType.IQ4_NL: quantize_iq4_nl,
}
WEIGHTED_TYPES = tuple(_WEIGHTED)  # the others take no notice of an importance matrix, as in ggml


def quantize_blocks(x: np.ndarray, quant_type: QuantType, importance: np.ndarray | None = None) -> np.ndarray:
    """`x` float32 [n_rows, n_cols] as fresh uint8 [n_rows, row_bytes]. `importance` float32 [n_cols], above 0: how much
    an error in each column counts.

    Raises ValueError for a type without a quantiser.
    """
    if quant_type not in _QUANTIZERS:
        raise ValueError(f"no quantiser for {quant_type.name}; there are: {', '.join(t.name for t in TYPES)}")
    size = row_bytes(quant_type, x.shape[1])
    x = np.ascontiguousarray(x, dtype=np.float32)
    if importance is not None and quant_type in _WEIGHTED:
        return _WEIGHTED[quant_type](x, importance).reshape(x.shape[0], size)
    return _QUANTIZERS[quant_type](x).reshape(x.shape[0], size)
