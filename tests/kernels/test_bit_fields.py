"""Bit fields of byte lanes on every instruction set, and dots on processors that lack GFNI and VBMI."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from quant_blocks import random_rows

from kernels.cpu import bit_fields, vector_ir
from kernels.cpu.dots import N_ROW_ARGUMENTS, emit_rows, quantize_address, rows_address
from kernels.cpu.features import ISAS, TARGET, runnable, target
from kernels.cpu.native import address_of
from kernels.cpu.quantize_activations import form_of, new_form
from kernels.cpu.vector_ir import I8, Emitter, vec
from kernels.quant_types import QuantType

RUNNABLE = [isa for isa in ISAS if runnable(isa)]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("mask", [15, 3, 48, 255, 0x55])
@pytest.mark.parametrize("shift", [-7, -4, -1, 0, 1, 2, 4, 6, 7])
def test_shifted_is_shift_and_mask(shift: int, mask: int, isa: str) -> None:
    values, found = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)

    def emit(e: Emitter, x: object, out: object) -> None:
        for n in range(0, 256, 32):
            e.store(bit_fields.shifted(e, e.load(e.at(x, n), vec(I8, 32)), shift, mask), e.at(out, n))

    signed = mask - 256 if mask > 127 else mask
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 2)(address_of(f"bits_{shift}_{signed}", 2, emit, target(isa)))
    run(values.ctypes.data, found.ctypes.data)
    moved = values.astype(int) >> shift if shift >= 0 else values.astype(int) << -shift
    np.testing.assert_array_equal(found, moved & mask)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("gfni", [True, False])
def test_parities_are_those_of_chosen_bits(gfni: bool, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bit_fields, "_HAS_GFNI", gfni and bit_fields._HAS_GFNI)
    rows, plus = [[0x81, 0, 0x40, 1, 2, 0x33, 0x80], [0x10, 0xFF]], 0x85
    values, found = np.arange(256, dtype=np.uint8), np.zeros(256, np.uint8)

    def emit(e: Emitter, x: object, out: object) -> None:
        for n in range(0, 256, 32):
            e.store(bit_fields.parities(e, e.load(e.at(x, n), vec(I8, 32)), rows, plus), e.at(out, n))

    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 2)(address_of(f"parities_{gfni}", 2, emit, target(isa)))
    run(values.ctypes.data, found.ctypes.data)
    for value, got in zip(values.tolist(), found.tolist(), strict=True):
        bits = [(value & row).bit_count() % 2 << i for i, row in enumerate(rows[value // 8 % 2])]
        assert got == sum(bits) ^ plus


@pytest.mark.parametrize("isa", RUNNABLE)
def test_shifted_adds_bits(isa: str) -> None:
    values, found = np.arange(40, 72, dtype=np.uint8), np.zeros((2, 32), np.uint8)

    def emit(e: Emitter, x: object, out: object) -> None:
        value = e.load(x, vec(I8, 32))
        for row, shift in enumerate((0, 2)):
            e.store(bit_fields.shifted(e, value, shift, 3, 12), e.at(out, 32 * row))

    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 2)(address_of("bits_plus", 2, emit, target(isa)))
    run(values.ctypes.data, found.ctypes.data)
    np.testing.assert_array_equal(found, [values & 3 | 12, values >> 2 & 3 | 12])


@pytest.mark.parametrize("name", ["MXFP4", "IQ4_NL", "Q4_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_dots_do_not_depend_on_gfni_and_vbmi(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quant_type, n_cols = QuantType[name], 1280
    rows = random_rows(np.random.default_rng(0), quant_type, 5, n_cols)
    x = np.random.default_rng(1).standard_normal(n_cols).astype(np.float32)
    form = form_of(quant_type)
    record = new_form(form, 1, n_cols)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(quantize_address(form))(x.ctypes.data, record.address, n_cols)

    def dots(address: int) -> np.ndarray:
        out = np.full(5, np.nan, np.float32)
        run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * N_ROW_ARGUMENTS)(address)
        run(rows.ctypes.data, rows.shape[1], 5, n_cols, record.address, out.ctypes.data)
        return out

    usual = dots(rows_address(quant_type))
    monkeypatch.setattr(bit_fields, "_HAS_GFNI", False)
    monkeypatch.setattr(vector_ir, "_HAS_VBMI", False)
    plain = address_of(f"plain_{name}", N_ROW_ARGUMENTS, emit_rows(quant_type), TARGET)
    np.testing.assert_array_equal(dots(plain), usual)
