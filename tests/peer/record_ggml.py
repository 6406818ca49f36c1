"""Writes down what ggml makes of the rows of `quantizer_rows`, for tests/convert/ggml_*.json; a program.

usage: python -m tests.peer.record_ggml
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf.quants import dequantize

from kernels.quant_types import QuantType as Q
from tests.convert.quantizer_rows import (
    counts,
    distributions,
    matrices,
    mixed_importance,
    mixed_rows,
    odd_blocks,
    weighted_error,
)
from tests.peer.ggml_peer import Ggml, find_ggml

RECORDS = Path(__file__).parents[1] / "convert"
EXACT = (Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.MXFP4, Q.IQ4_NL)
SEARCHED = (Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K)
WIDTHS = (32, 1408, 2880)
N_ROWS = 24


def blocks(ggml: Ggml) -> dict[str, Any]:
    """Of each type with one right answer: the odd blocks in hex, digests of wider rows, IQ4_NL's also weighted."""
    odd, record = odd_blocks(), {}
    for quant_type in EXACT:
        record[quant_type.name] = {
            "blocks": {name: ggml.quantize(block[None], quant_type).tobytes().hex() for name, block in odd.items()},
            "rows": {str(n): digest(ggml.quantize(mixed_rows(N_ROWS, n), quant_type)) for n in WIDTHS},
        }
    importance = mixed_importance(32)
    record["IQ4_NL weighted"] = {
        "blocks": {
            name: ggml.quantize(block[None], Q.IQ4_NL, importance).tobytes().hex() for name, block in odd.items()
        },
        "rows": {str(n): digest(ggml.quantize(mixed_rows(N_ROWS, n), Q.IQ4_NL, mixed_importance(n))) for n in WIDTHS},
    }
    return record


def errors(ggml: Ggml) -> dict[str, Any]:
    """Weighted errors of the types that search, by type, importance matrix and distribution."""
    record: dict[str, Any] = {}
    for quant_type in SEARCHED:
        for matrix, importance in matrices().items():
            for name, x in distributions().items():
                back = dequantize(ggml.quantize(x, quant_type, importance), quant_type)
                error = weighted_error(x, back, counts(x, quant_type, importance))
                record.setdefault(quant_type.name, {}).setdefault(matrix, {})[name] = float(f"{error:.6g}")
    return record


def digest(quantized: np.ndarray) -> str:
    return hashlib.sha256(quantized.tobytes()).hexdigest()


def main() -> None:
    ggml = find_ggml()
    if ggml is None:
        raise SystemExit("no ggml library: set LLAMA_CPP_LIB_PATH")
    for name, record in {"ggml_blocks": blocks(ggml), "ggml_errors": errors(ggml)}.items():
        (RECORDS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
