"""Quantisers against ggml's own library, where it is: types with one right answer bit for bit, searches by error."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gguf.quants import dequantize

from kernels.cpu.quantize import quantize_blocks
from kernels.quant_types import QuantType as Q
from tests.convert.quantizer_rows import counts, distributions, matrices, odd_blocks, weighted_error
from tests.peer import record_ggml
from tests.peer.ggml_peer import Ggml, find_ggml
from tests.tolerances import GGML_ERROR_RELATIVE

GGML = find_ggml()

pytestmark = pytest.mark.skipif(GGML is None, reason="neither llama_cpp nor $LLAMA_CPP_LIB_PATH: no ggml library")


@pytest.fixture
def ggml() -> Ggml:
    assert GGML is not None
    return GGML


def test_blocks_written_down_are_the_librarys(ggml: Ggml) -> None:
    assert record_ggml.blocks(ggml) == json.loads((record_ggml.RECORDS / "ggml_blocks.json").read_text("utf-8"))


def test_errors_written_down_are_the_librarys(ggml: Ggml) -> None:
    kept = json.loads((record_ggml.RECORDS / "ggml_errors.json").read_text("utf-8"))
    for quant_type, by_matrix in record_ggml.errors(ggml).items():
        for matrix, by_name in by_matrix.items():
            assert kept[quant_type][matrix] == pytest.approx(by_name, rel=GGML_ERROR_RELATIVE), (quant_type, matrix)


@pytest.mark.parametrize("n_cols", [32, 1408, 2880])
@pytest.mark.parametrize("quant_type", record_ggml.EXACT, ids=lambda t: t.name)
def test_bit_exact_on_other_rows(ggml: Ggml, quant_type: Q, n_cols: int) -> None:
    rng = np.random.default_rng(n_cols)
    matrix = rng.exponential(size=n_cols).astype(np.float32)
    for name, x in {**distributions(16, n_cols), "odd": np.concatenate([*odd_blocks().values()])[None]}.items():
        importances = (None, matrix) if quant_type is Q.IQ4_NL and name != "odd" else (None,)
        for importance in importances:
            expected = ggml.quantize(x, quant_type, importance)
            np.testing.assert_array_equal(quantize_blocks(x, quant_type, importance), expected, err_msg=name)


@pytest.mark.parametrize("matrix", matrices())
@pytest.mark.parametrize("quant_type", record_ggml.SEARCHED, ids=lambda t: t.name)
def test_weighted_error_is_no_larger_on_other_rows(ggml: Ggml, quant_type: Q, matrix: str) -> None:
    """Rows of another width than those written down: 768, with their own matrix."""
    importance = matrices(768)[matrix]
    worse = {}
    for name, x in distributions(48, 768).items():
        weight = counts(x, quant_type, importance)
        quantized = quantize_blocks(x, quant_type, importance), ggml.quantize(x, quant_type, importance)
        ours, theirs = (weighted_error(x, dequantize(blocks, quant_type), weight) for blocks in quantized)
        if ours > theirs:
            worse[name] = ours / theirs
    assert not worse
