"""Row dots of every direct type on every instruction set of this machine, against float64 dots of `gguf`'s weights."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest
import tolerances
from quant_blocks import SCALE_OFFSETS, random_rows

from kernels.cpu.dots import DIRECT_TYPES, N_ROW_ARGUMENTS, emit_rows, quantize_address, rows_address
from kernels.cpu.features import ISAS, Target, choose_isa, runnable, target
from kernels.cpu.native import build_module, optimised
from kernels.cpu.quantize_activations import FORM_F32, form_of, new_form
from kernels.quant_types import QuantType, block_bytes, block_size
from kernels.reference.dequant import dequantize_rows

RUNNABLE = [isa for isa in ISAS if runnable(isa)]
WIDTHS = {1: (1, 7, 32, 33, 255, 2048), 32: (32, 96, 1408, 2880), 256: (256, 768, 1536, 2048)}
CASES = [(t, n) for t in DIRECT_TYPES for n in WIDTHS[block_size(t)]]
GUARD = np.float32(-12345.0)


def row_dots(
    quant_type: QuantType, rows: np.ndarray, x: np.ndarray, isa: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(dots of the uint8 rows with float32 x, the activations as float64 numbers that the kernel read)."""
    chosen, form = target(isa), form_of(quant_type)
    if form == FORM_F32:
        record, seen = x.ctypes.data, x.astype(np.float64)
    else:
        made = new_form(form, 1, x.size)
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(quantize_address(form, chosen))
        call(x.ctypes.data, made.address, x.size)
        record = made.address
        start = record - made.owner.ctypes.data
        raw = made.owner[start : start + made.stride]
        size, after = (32, x.size) if block_size(quant_type) == 32 else (256, x.size + x.size // 8)
        scales = raw[after : after + 4 * (x.size // size)].view(np.float32).astype(np.float64)
        seen = (raw[: x.size].view(np.int8).reshape(-1, size) * scales[:, None]).ravel()
    out = np.full(rows.shape[0] + 1, np.nan, np.float32)
    out[-1] = GUARD
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * N_ROW_ARGUMENTS)(rows_address(quant_type, chosen))
    kernel(rows.ctypes.data, rows.shape[1], rows.shape[0], x.size, record, out.ctypes.data)
    assert out[-1] == GUARD
    return out[:-1], seen


def assert_close(got: np.ndarray, weights: np.ndarray, seen: np.ndarray) -> None:
    """Within DOT_RELATIVE of the sum of magnitudes, the scale on which rounding errors of a dot live."""
    weights = weights.astype(np.float64)
    allowed = tolerances.DOT_RELATIVE * (np.abs(weights) @ np.abs(seen)) + 1e-45
    assert np.isfinite(got).all()
    assert (np.abs(got - weights @ seen) <= allowed).all()


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize(("quant_type", "n_cols"), CASES, ids=lambda v: getattr(v, "name", str(v)))
def test_dot_is_that_of_the_dequantised_row(quant_type: QuantType, n_cols: int, isa: str) -> None:
    rng = np.random.default_rng(n_cols)
    rows, x = random_rows(rng, quant_type, 5, n_cols), rng.standard_normal(n_cols).astype(np.float32)
    got, seen = row_dots(quant_type, rows, x, isa)
    weights = dequantize_rows(rows, quant_type, n_cols)
    assert_close(got, weights, seen)
    # and of the activations as given: each is off by at most half a step of its block
    half_steps = np.abs(weights.astype(np.float64)) @ np.abs(seen - x)
    assert (np.abs(got - weights.astype(np.float64) @ x) <= half_steps + 1e-5).all()
    assert np.abs(seen - x).max() <= np.abs(x).max() / 254 * 1.0001


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("quant_type", DIRECT_TYPES, ids=lambda t: t.name)
def test_extreme_blocks(quant_type: QuantType, isa: str) -> None:
    """Any bytes, scales from 0 to the largest half float, activations of one sign: every sum at its largest."""
    rng = np.random.default_rng(9)
    rows = random_rows(rng, quant_type, 16, 1024, extreme=True)
    x = np.abs(rng.standard_normal(1024).astype(np.float32)) + 3
    got, seen = row_dots(quant_type, rows, x, isa)
    assert_close(got, dequantize_rows(rows, quant_type, 1024), seen)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("quant_type", [t for t in DIRECT_TYPES if block_size(t) > 1], ids=lambda t: t.name)
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F])
def test_saturated_bytes(quant_type: QuantType, byte: int, isa: str) -> None:
    """All quants and sub-scales at an end of their range: where 16-bit pair sums would overflow first."""
    rows = random_rows(np.random.default_rng(3), quant_type, 3, 512)
    scales = rows.copy()
    rows[:] = byte
    blocks, kept = (a.reshape(3, -1, block_bytes(quant_type)) for a in (rows, scales))
    width = 1 if quant_type == QuantType.MXFP4 else 2
    for offset in SCALE_OFFSETS.get(quant_type, (0,)):
        blocks[..., offset : offset + width] = kept[..., offset : offset + width]
    for x in (np.full(512, 1.0, np.float32), np.full(512, -1.0, np.float32)):
        got, seen = row_dots(quant_type, rows, x, isa)
        assert_close(got, dequantize_rows(rows, quant_type, 512), seen)


@pytest.mark.parametrize("quant_type", DIRECT_TYPES, ids=lambda t: t.name)
def test_a_row_does_not_depend_on_its_neighbours(quant_type: QuantType) -> None:
    rng = np.random.default_rng(1)
    rows, x = random_rows(rng, quant_type, 9, 512), rng.standard_normal(512).astype(np.float32)
    together, _ = row_dots(quant_type, rows, x)
    alone = [row_dots(quant_type, rows[i : i + 1], x)[0][0] for i in range(9)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("quant_type", [QuantType.Q8_0, QuantType.Q4_K, QuantType.F16], ids=lambda t: t.name)
def test_a_bad_activation_is_seen_in_the_result(quant_type: QuantType) -> None:
    rng = np.random.default_rng(1)
    rows, x = random_rows(rng, quant_type, 2, 512), np.ones(512, np.float32)
    x[5] = np.nan
    assert np.isnan(row_dots(quant_type, rows, x)[0]).all()


def test_the_best_instruction_set_is_chosen_and_can_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEARL_CPU", raising=False)
    assert choose_isa() == RUNNABLE[0]
    monkeypatch.setenv("PEARL_CPU", "portable")
    assert choose_isa() == "portable"
    assert choose_isa(RUNNABLE[0]) == RUNNABLE[0]
    monkeypatch.setenv("PEARL_CPU", "sse9")
    with pytest.raises(ValueError, match=r"PEARL_CPU=sse9.*portable"):
        choose_isa()


def test_narrower_sets_switch_wider_features_off() -> None:
    if not runnable("avx2"):
        pytest.skip("needs an x86 processor with AVX2")
    flags = target("avx2").features.split(",")
    assert "+avx2" in flags
    assert not [f for f in flags if f.startswith(("+avx512", "+avxvnni"))]


def test_unknown_types_have_no_row_dot() -> None:
    with pytest.raises(KeyError):
        rows_address(QuantType.IQ2_XXS)


@pytest.mark.parametrize("quant_type", DIRECT_TYPES, ids=lambda t: t.name)
def test_code_for_neon_can_be_made_on_any_machine(quant_type: QuantType) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = build_module("rows", N_ROW_ARGUMENTS, emit_rows(quant_type), "neon")
    assert "llvm.x86" not in str(module)
    module.triple = "aarch64-unknown-linux-gnu"
    try:
        llvm.Target.from_triple(module.triple)
    except RuntimeError:
        pytest.skip("this llvmlite makes no code for aarch64")
    parsed, machine = optimised(module, Target("neon", "neoverse-n1", "+dotprod"))
    assert ("sdot" in machine.emit_assembly(parsed)) == (form_of(quant_type) != FORM_F32)
