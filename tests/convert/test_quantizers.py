"""Quantisers against gguf-py where it has the type, against plain rounding and known errors where it has not."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from convert.quantize import quantize_q8_0_rows, quantize_rows, to_bf16
from kernels.cpu.quantize import TYPES, quantize_blocks
from kernels.quant_types import QuantType as Q
from kernels.quant_types import row_bytes
from models.errors import ConversionError
from tests import tolerances
from tests.convert.quantizer_rows import weighted_error

EXACT = [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.MXFP4]
SEARCHED = [Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL]


def heavy_tailed(n_rows: int = 24, n_cols: int = 512) -> np.ndarray:
    x = np.random.default_rng(3).standard_t(5, (n_rows, n_cols)).astype(np.float32) * np.float32(0.02)
    x[0] = 0
    x[1, :256] = 0
    x[2], x[3] = np.abs(x[2]), -np.abs(x[3])
    x[4], x[5] = 0.5, -0.25
    x[6, 1:] = 0
    return x


@pytest.mark.parametrize("quant_type", EXACT, ids=lambda t: t.name)
def test_bit_exact_to_gguf_py(quant_type: Q) -> None:
    x = heavy_tailed()
    np.testing.assert_array_equal(quantize_blocks(x, quant_type), quantize(x, quant_type))


# gguf-py's own division overflows in blocks whose largest weight is near the smallest float32.
_WEIGHTS = st.floats(-8, 8, width=32).map(lambda value: value if abs(value) > 1e-30 else 0.0)


@given(st.lists(_WEIGHTS, min_size=32, max_size=32), st.sampled_from(EXACT))
@settings(max_examples=150, deadline=None)
def test_bit_exact_on_any_block(values: list[float], quant_type: Q) -> None:
    x = np.array([values], np.float32)
    np.testing.assert_array_equal(quantize_blocks(x, quant_type), quantize(x, quant_type))


def test_mxfp4_around_powers_of_two_and_between_values() -> None:
    """Where the largest weight is just below a power of two, float32's logarithm rounds up; ties go to the first."""
    x = np.zeros((6, 64), np.float32)
    x[0] = 1024 * (1 - 2**-24)
    x[1] = 2.0
    x[2, :32] = np.arange(32) - 16
    x[3, ::2] = np.array([0, 0.5, 1.5, 2.5, 3.5, 5, 7, 10] * 4)
    x[4] = 1e-30
    x[5] = np.linspace(-1e30, 1e30, 64)
    np.testing.assert_array_equal(quantize_blocks(x, Q.MXFP4), quantize(x, Q.MXFP4))


@pytest.mark.parametrize("quant_type", SEARCHED, ids=lambda t: t.name)
def test_error_of_searched_types(quant_type: Q) -> None:
    x = np.random.default_rng(5).standard_normal((64, 512)).astype(np.float32)
    back = dequantize(quantize_blocks(x, quant_type), quant_type)
    error = float(np.sqrt(((back - x) ** 2).mean() / (x**2).mean()))
    assert error <= tolerances.QUANTIZER_RMS[quant_type.name]


@pytest.mark.parametrize("quant_type", SEARCHED, ids=lambda t: t.name)
def test_zero_and_constant_rows_survive(quant_type: Q) -> None:
    x = heavy_tailed()
    blocks = quantize_blocks(x, quant_type)
    assert blocks.shape == (x.shape[0], row_bytes(quant_type, x.shape[1]))
    back = dequantize(blocks, quant_type)
    assert (back[0] == 0).all()
    assert (back[1, :256] == 0).all()
    np.testing.assert_allclose(back[4], 0.5, rtol=tolerances.QUANTIZER_CONSTANT)
    np.testing.assert_allclose(back[5], -0.25, rtol=tolerances.QUANTIZER_CONSTANT)
    assert abs(back[6, 0] - x[6, 0]) <= tolerances.QUANTIZER_CONSTANT * abs(x[6, 0])


@pytest.mark.parametrize("quant_type", TYPES, ids=lambda t: t.name)
def test_rows_do_not_depend_on_their_neighbours(quant_type: Q) -> None:
    x = heavy_tailed()
    whole = quantize_blocks(x, quant_type)
    np.testing.assert_array_equal(
        whole, np.concatenate([quantize_blocks(x[i : i + 5], quant_type) for i in range(0, 24, 5)])
    )


def test_bf16_rounds_to_even_and_keeps_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0x00000001], np.uint32)
    assert to_bf16(bits.view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7FC0, 0]


@pytest.mark.parametrize("quant_type", [Q.F16, Q.Q8_0, Q.Q4_K], ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(quant_type: Q, bad: float) -> None:
    x = np.ones((2, 256), np.float32)
    x[1, 7] = bad
    with pytest.raises(ConversionError, match="tensor t holds NaN or infinite"):
        quantize_rows(x, quant_type, "t")


def test_f16_overflow_is_refused() -> None:
    with pytest.raises(ConversionError, match="65504"):
        quantize_rows(np.full((1, 4), 70000, np.float32), Q.F16, "t")


HALF_SCALES = [t for t in TYPES if t is not Q.MXFP4]


@pytest.mark.parametrize("quant_type", HALF_SCALES, ids=lambda t: t.name)
@pytest.mark.parametrize("power", [10, 20, 36])
def test_weights_too_large_for_a_half_precision_scale_are_refused(quant_type: Q, power: int) -> None:
    x = heavy_tailed()
    x[3, 70] = 10.0**power
    message = rf"tensor t holds weights up to 1e\+{power}, too large for {quant_type.name}"
    with pytest.raises(ConversionError, match=message):
        quantize_rows(x, quant_type, "t")


@pytest.mark.parametrize("quant_type", TYPES, ids=lambda t: t.name)
def test_large_weights_that_can_be_stored_are(quant_type: Q) -> None:
    # Q4_1 and Q5_1 store a block's minimum as it is.
    x = heavy_tailed() * np.float32(1e5 if quant_type in (Q.Q4_1, Q.Q5_1) else 4e5)
    back = dequantize(quantize_rows(x, quant_type, "t").reshape(len(x), -1), quant_type)
    assert weighted_error(x, back, np.ones(x.shape)) <= tolerances.QUANTIZER_LARGE


def test_bfloat16_too_large_for_q8_0_is_refused() -> None:
    halves = to_bf16(np.full((1, 32), 1e7, np.float32))
    with pytest.raises(ConversionError, match=r"tensor t holds weights up to 1e\+07, too large for Q8_0"):
        quantize_q8_0_rows(halves, "t")


def test_type_without_quantiser_is_a_callers_fault() -> None:
    with pytest.raises(ValueError, match="IQ2_XXS"):
        quantize_blocks(np.zeros((1, 256), np.float32), Q.IQ2_XXS)
