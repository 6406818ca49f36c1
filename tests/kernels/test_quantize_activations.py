"""Activation records: layouts as documented, rounding, and the edges where a half-float implementation breaks."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import pytest
import tolerances

from kernels.cpu.dots import quantize_address
from kernels.cpu.features import ISAS, runnable, target
from kernels.cpu.quantize_activations import FORM_Q8_32, FORM_Q8_256, Form, form_of, quantize, record_bytes
from kernels.quant_types import QuantType

FORMS = {FORM_Q8_32: 32, FORM_Q8_256: 256}


class Record(NamedTuple):
    """One token's record, read back by the documented offsets."""

    q: np.ndarray
    d: np.ndarray
    sums: np.ndarray  # isum or bsum
    s: np.ndarray | None = None
    pairs: np.ndarray | None = None


def read_record(made: Form, form: int, n_cols: int, token: int = 0) -> Record:
    start = made.address + token * made.stride - made.owner.ctypes.data
    raw = made.owner[start : start + record_bytes(form, n_cols)]
    q, rest = raw[:n_cols].view(np.int8), raw[n_cols:]
    eighth = n_cols // 8
    if form == FORM_Q8_32:
        parts = [rest[i * eighth : (i + 1) * eighth] for i in range(3)]
        return Record(q, parts[0].view(np.float32), parts[2].view(np.int32), parts[1].view(np.float32))
    pairs = rest[eighth + n_cols // 64 :][: n_cols // 16].view(np.int16)
    return Record(q, rest[eighth : eighth + n_cols // 64].view(np.float32), rest[:eighth].view(np.int16), pairs=pairs)


def quantized(x: np.ndarray, form: int, isa: str = "portable") -> Record:
    made = quantize(x.reshape(1, -1), form, quantize_address(form, target(isa)))
    return read_record(made, form, x.size)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if runnable(isa)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_blocks", [1, 3, 11])
def test_records_hold_what_the_layout_says(form: int, n_blocks: int, isa: str) -> None:
    size = FORMS[form]
    x = np.random.default_rng(n_blocks).standard_normal(n_blocks * size).astype(np.float32)
    blocks = x.reshape(-1, size)
    expected_d = np.abs(blocks).max(1) / np.float32(127)
    inverse = np.float32(1) / expected_d
    expected_q = np.rint(blocks * inverse[:, None]).astype(np.int8)
    record = quantized(x, form, isa)
    np.testing.assert_array_equal(record.d, expected_d)
    np.testing.assert_array_equal(record.q.reshape(-1, size), expected_q)
    integers = expected_q.astype(np.int32)
    if form == FORM_Q8_32:
        assert record.s is not None
        totals = integers.sum(1)
        np.testing.assert_array_equal(record.s, expected_d * totals.astype(np.float32))
        np.testing.assert_array_equal(record.sums, -128 * totals)
    else:
        np.testing.assert_array_equal(record.sums, integers.reshape(-1, 16).sum(1))
        assert record.pairs is not None
        np.testing.assert_array_equal(record.pairs, integers.reshape(-1, 32).sum(1))


@pytest.mark.parametrize("form", FORMS)
def test_large_activations_do_not_overflow_their_sums(form: int) -> None:
    """A block of 6e4 has a sum of 1.9e6, beyond the largest half float."""
    x = np.full(256, 6e4, np.float32)
    record = quantized(x, form)
    assert (record.q == 127).all()
    if record.s is not None:
        np.testing.assert_allclose(record.s, 32 * 6e4, rtol=tolerances.FLOAT32_RELATIVE)
    else:
        assert (record.sums == 16 * 127).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, -3e-39])
def test_zero_and_subnormal_blocks_become_zero(form: int, value: float) -> None:
    record = quantized(np.full(256, value, np.float32), form)
    assert not record.q.any()
    assert not record.d.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [2e-36, 1.0, 3.4e38])
def test_magnitude_never_exceeds_127(form: int, value: float) -> None:
    x = np.linspace(-value, value, 256, dtype=np.float32)
    record = quantized(x, form)
    assert record.q.min() >= -127
    np.testing.assert_array_equal(record.q[[0, -1]], [-127, 127])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_number_stays_visible(form: int, bad: float) -> None:
    x = np.ones(256, np.float32)
    x[77] = bad
    assert not np.isfinite(quantized(x, form).d).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_tokens", [1, 4, 5, 33])
def test_a_token_is_quantised_the_same_in_every_company(form: int, n_tokens: int) -> None:
    x = np.random.default_rng(5).standard_normal((n_tokens, 512)).astype(np.float32)
    made = quantize(x, form, quantize_address(form))
    assert made.address % 64 == 0
    for t in range(n_tokens):
        together, alone = read_record(made, form, 512, t), quantized(x[t], form)
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_array_equal(a, b)


def test_rounding_is_half_to_even() -> None:
    x = np.zeros(32, np.float32)
    x[:4] = [127.0, 0.5, 1.5, -2.5]
    np.testing.assert_array_equal(quantized(x, FORM_Q8_32).q[:4], [127, 0, 2, -2])


def test_arrays_that_the_kernel_cannot_read_are_refused() -> None:
    address = quantize_address(FORM_Q8_256)
    with pytest.raises(ValueError, match="width 320"):
        quantize(np.zeros((1, 320), np.float32), FORM_Q8_256, address)
    with pytest.raises(ValueError, match="contiguous"):
        quantize(np.zeros((2, 512), np.float32)[:, ::2], FORM_Q8_256, address)
    with pytest.raises(ValueError, match="float32"):
        quantize(np.zeros((1, 256)), FORM_Q8_256, address)


def test_forms_follow_the_block_size() -> None:
    assert form_of(QuantType.MXFP4) == FORM_Q8_32
    assert form_of(QuantType.IQ4_XS) == FORM_Q8_256
    assert ctypes.sizeof(ctypes.c_float) * 32 == record_bytes(form_of(QuantType.F16), 32)
