"""Quantisers against what ggml made of the same rows, written down by `tests/peer/record_ggml.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.quants import dequantize

from kernels.cpu.quantize import quantize_blocks
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
from tests.peer.record_ggml import N_ROWS, SEARCHED, digest


def recorded(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(Path(__file__).with_name(f"ggml_{name}.json").read_text("utf-8"))
    return record


BLOCKS, ERRORS = recorded("blocks"), recorded("errors")


def type_of(case: str) -> tuple[Q, bool]:
    name, *weighted = case.split()
    return Q[name], bool(weighted)


@pytest.mark.parametrize("case", BLOCKS)
def test_odd_blocks_are_ggmls(case: str) -> None:
    quant_type, weighted = type_of(case)
    importance = mixed_importance(32) if weighted else None
    found = {
        name: quantize_blocks(block[None], quant_type, importance).tobytes().hex()
        for name, block in odd_blocks().items()
    }
    assert found == BLOCKS[case]["blocks"]


@pytest.mark.parametrize("case", BLOCKS)
def test_rows_of_any_width_are_ggmls(case: str) -> None:
    quant_type, weighted = type_of(case)
    for n_cols, expected in BLOCKS[case]["rows"].items():
        n = int(n_cols)
        found = quantize_blocks(mixed_rows(N_ROWS, n), quant_type, mixed_importance(n) if weighted else None)
        assert digest(found) == expected, n


@pytest.fixture(scope="module")
def drawn() -> dict[str, np.ndarray]:
    return distributions()


@pytest.mark.parametrize("matrix", matrices())
@pytest.mark.parametrize("quant_type", SEARCHED, ids=lambda t: t.name)
def test_weighted_error_is_no_larger_than_ggmls(quant_type: Q, matrix: str, drawn: dict[str, np.ndarray]) -> None:
    importance, bounds = matrices()[matrix], ERRORS[quant_type.name][matrix]
    found = {}
    for name, x in drawn.items():
        back = dequantize(quantize_blocks(x, quant_type, importance), quant_type)
        found[name] = weighted_error(x, back, counts(x, quant_type, importance))
    assert set(found) == set(bounds)
    assert not {name: (error, bounds[name]) for name, error in found.items() if error > bounds[name]}
