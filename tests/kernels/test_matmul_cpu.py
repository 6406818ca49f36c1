"""Tile kernels for many tokens: every type and inner loop against float64, and independence of tokens and threads."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kernels.backend import SILU, ExpertGroups, ExpertTable, Weight
from kernels.bench.blocks import random_blocks
from kernels.cpu.dots import DIRECT_TYPES, quantize_address
from kernels.cpu.features import ISAS, runnable, target
from kernels.cpu.gated_units import unit_address
from kernels.cpu.matmul import TileTable, matmul, matmul_dequantized
from kernels.cpu.matmul_experts import down_many, gate_up_many
from kernels.cpu.quantize_activations import FORM_F32, FORM_Q8_32, Form, form_of, new_form
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType, block_size
from kernels.reference.dequant import dequantize_rows
from tests.tolerances import TILE_RELATIVE

RUNNABLE = [isa for isa in ISAS if runnable(isa)]


def records_of(x: np.ndarray, form: int, isa: str) -> Form:
    """Activation records of float32 x [T, n_cols]."""
    if form == FORM_F32:
        return Form(x.ctypes.data, x.strides[0], x)
    made = new_form(form, *x.shape)
    address = quantize_address(form, target(isa))
    quantize = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)
    for t in range(x.shape[0]):
        quantize(x[t].ctypes.data, made.address + t * made.stride, x.shape[1])
    return made


def flat(form: int, record: Form) -> list[int]:
    records = [0] * 6
    records[2 * form : 2 * form + 2] = record.address, record.stride
    return records


def decoded(record: Form, form: int, n_tokens: int, n_cols: int) -> np.ndarray:
    """The float64 activations that records stand for."""
    n_bytes = n_tokens * record.stride
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * n_bytes).from_address(record.address)).reshape(n_tokens, -1)
    if form == FORM_F32:
        return np.ascontiguousarray(raw).view(np.float32).astype(np.float64)
    quants = np.ascontiguousarray(raw[:, :n_cols]).view(np.int8)
    per, first = (32, n_cols) if form == FORM_Q8_32 else (256, n_cols + n_cols // 8)
    d = np.ascontiguousarray(raw[:, first : first + 4 * n_cols // per]).view(np.float32)
    return quants.astype(np.float64) * np.repeat(d, per, axis=1)


def weight(quant_type: QuantType, n_rows: int, n_cols: int) -> Weight:
    rng = np.random.default_rng([quant_type, n_rows, n_cols])
    return Weight(random_blocks(rng, quant_type, n_rows, n_cols), quant_type, n_rows, n_cols)


def floats(w: Weight) -> np.ndarray:
    return dequantize_rows(w.data, w.quant_type, w.n_cols).astype(np.float64)


def activations(n_tokens: int, n_cols: int) -> np.ndarray:
    return np.random.default_rng([n_tokens, n_cols]).standard_normal((n_tokens, n_cols), dtype=np.float32)


def product(w: Weight, x: np.ndarray, isa: str, n_parts: int = 1) -> np.ndarray:
    """x @ w^T by the tile kernels, into rows with a guard column on either side."""
    form = form_of(w.quant_type)
    record = records_of(x, form, isa)
    out = np.full((x.shape[0], w.n_rows + 2), np.nan, np.float32)
    matmul([w], flat(form, record), out[:, 1:], TileTable(target(isa)), n_parts)
    assert np.isnan(out[:, [0, -1]]).all()
    return out[:, 1:-1]


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= TILE_RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("quant_type", DIRECT_TYPES, ids=lambda t: t.name)
def test_every_type_and_inner_loop(quant_type: QuantType, isa: str) -> None:
    """Row counts around a tile, token counts around a group, and the widths 1408 and 2880 of real experts."""
    size = block_size(quant_type)
    widths = {1: (1, 33, 63, 511), 32: (32, 1408, 2880), 256: (256, 1536)}[size]
    for n_cols, n_rows, n_tokens in [(w, r, t) for w in widths for r, t in ((1, 4), (16, 9), (33, 5), (63, 23))]:
        w, x = weight(quant_type, n_rows, n_cols), activations(n_tokens, n_cols)
        form = form_of(quant_type)
        expected = decoded(records_of(x, form, isa), form, n_tokens, n_cols) @ floats(w).T
        assert_close(product(w, x, isa), expected)


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("quant_type", [QuantType.Q4_K, QuantType.Q8_0, QuantType.F16], ids=lambda t: t.name)
def test_a_token_depends_neither_on_its_neighbours_nor_on_threads(quant_type: QuantType, isa: str) -> None:
    w, x = weight(quant_type, 50, 512), activations(21, 512)
    together = product(w, x, isa)
    for first, stop in ((0, 1), (3, 5), (8, 20), (20, 21)):
        np.testing.assert_array_equal(product(w, x[first:stop], isa), together[first:stop])
    for n_parts in (2, 3, 7):
        np.testing.assert_array_equal(product(w, x, isa, n_parts), together)


@pytest.mark.parametrize("quant_type", [QuantType.Q8_0, QuantType.Q6_K, QuantType.IQ4_XS], ids=lambda t: t.name)
@pytest.mark.parametrize("isa", RUNNABLE)
def test_extreme_bytes_and_activations(quant_type: QuantType, isa: str) -> None:
    """All quants at either end against all activations at either end: the largest integer sums there are."""
    n_cols = 256
    for byte in (0x00, 0x7F, 0x80, 0xFF):
        data = weight(quant_type, 16, n_cols).data.copy()
        scales = data.copy()
        data[:] = byte
        for offset in {QuantType.Q8_0: range(0, 272, 34), QuantType.Q6_K: (208,), QuantType.IQ4_XS: (0,)}[quant_type]:
            data[:, offset : offset + 2] = scales[:, offset : offset + 2]
        w, form = Weight(data, quant_type, 16, n_cols), form_of(quant_type)
        for sign in (1, -1):
            x = np.full((4, n_cols), sign * 6e4, np.float32)
            expected = decoded(records_of(x, form, isa), form, 4, n_cols) @ floats(w).T
            assert_close(product(w, x, isa), expected)


def test_several_weights_side_by_side() -> None:
    isa = target().isa
    weights = [weight(QuantType.Q8_0, 5, 256), weight(QuantType.Q4_0, 20, 256), weight(QuantType.Q8_0, 3, 256)]
    x = activations(6, 256)
    record = records_of(x, FORM_Q8_32, isa)
    out = np.full((6, 28), np.nan, np.float32)
    matmul(weights, flat(FORM_Q8_32, record), out, TileTable(target(isa)), 2)
    assert_close(out, decoded(record, FORM_Q8_32, 6, 256) @ np.concatenate([floats(w) for w in weights]).T)


def test_a_type_without_a_tile_kernel_is_dequantised() -> None:
    w = weight(QuantType.TQ2_0, 40, 256)
    x = activations(5, 512)[:, :256]
    out = np.full((5, 44), np.nan, np.float32)
    matmul_dequantized(w.data.ctypes.data, w.quant_type, 40, x, out[:, 2:42], TileTable(target()), 2)
    assert_close(out[:, 2:42], x.astype(np.float64) @ floats(w).T)
    assert np.isnan(out[:, [0, 1, 42, 43]]).all()


# grouped experts

D, F, E = 256, 96, 6
GATE, UP, DOWN = QuantType.Q4_K, QuantType.Q6_K, QuantType.Q5_0


def expert_table() -> tuple[ExpertTable, list[list[Weight]]]:
    """E experts; the last one's gate is stored as Q8_0, so that types differ within a call."""
    matrices = [[weight(GATE, F, D) for _ in range(E)], [weight(UP, F, D)] * E, [weight(DOWN, D, F)] * E]
    rng = np.random.default_rng(1)
    shapes = ((GATE, F, D), (UP, F, D), (DOWN, D, F))
    for row, (t, n_rows, n_cols) in zip(matrices, shapes, strict=True):
        row[:] = [Weight(random_blocks(rng, t, n_rows, n_cols), t, n_rows, n_cols) for _ in range(E)]
    matrices[0][-1] = weight(QuantType.Q8_0, F, D)
    addresses = [np.array([w.data.ctypes.data for w in row], np.int64) for row in matrices]
    types = [np.array([int(w.quant_type) for w in row], np.uint8) for row in matrices]
    return ExpertTable(*addresses, *types, hidden_size=D, intermediate_size=F), matrices


def run_experts(
    x: np.ndarray, table: ExpertTable, groups: ExpertGroups, which: list[int], n_parts: int
) -> tuple[np.ndarray, np.ndarray]:
    isa, n_pairs = target().isa, groups.token_ids.shape[0]
    q32, q256 = records_of(x, FORM_Q8_32, isa), records_of(x, 2, isa)
    records = [x.ctypes.data, x.strides[0], q32.address, q32.stride, q256.address, q256.stride]
    h, d = np.full((n_pairs, F), np.nan, np.float32), np.full((n_pairs, D), np.nan, np.float32)
    chosen, tiles = np.array(which, np.int32), TileTable(target())
    gate_up_many(table, groups, chosen, records, h, np.empty_like(h), unit_address(SILU, False), (0, 0), tiles, n_parts)
    h_record = new_form(FORM_Q8_32, n_pairs, F)
    h_records = [h.ctypes.data, h.strides[0], h_record.address, h_record.stride, 0, 0]
    quantizers = [0, quantize_address(FORM_Q8_32), 0]
    down_many(table, groups, chosen, h_records, quantizers, d, 0, 0, tiles, n_parts)
    return h, d


def expected_experts(
    x: np.ndarray, h: np.ndarray, matrices: list[list[Weight]], groups: ExpertGroups
) -> tuple[np.ndarray, np.ndarray]:
    """float64 h from decoded x, and d from the decoded records of the h that was found."""
    isa = target().isa
    by_form = {form: decoded(records_of(x, form, isa), form, x.shape[0], D) for form in (FORM_Q8_32, 2)}
    stored = decoded(records_of(h, FORM_Q8_32, isa), FORM_Q8_32, h.shape[0], F)
    expected_h, expected_d = np.empty(h.shape), np.empty((h.shape[0], D))
    for g, expert in enumerate(groups.expert_ids):
        rows = slice(groups.offsets[g], groups.offsets[g + 1])
        tokens, (gate, up, down) = groups.token_ids[rows], (row[expert] for row in matrices)
        a = by_form[form_of(gate.quant_type)][tokens] @ floats(gate).T
        expected_h[rows] = a / (1 + np.exp(-a)) * (by_form[form_of(up.quant_type)][tokens] @ floats(up).T)
        expected_d[rows] = stored[rows] @ floats(down).T
    return expected_h, expected_d


@pytest.mark.parametrize("case", ["spread", "all tokens to one expert", "one token an expert"])
def test_grouped_experts(case: str) -> None:
    n_tokens = 3 if case == "one token an expert" else 40
    ids = np.argsort(np.random.default_rng(2).random((n_tokens, E)), axis=1)[:, :2].astype(np.int32)
    if case == "all tokens to one expert":
        ids[:] = (4, 1)
    table, matrices = expert_table()
    groups = group_by_expert(ids)
    x = 0.1 * activations(n_tokens, D)
    h, d = run_experts(x, table, groups, list(range(len(groups.expert_ids))), 2)
    expected_h, expected_d = expected_experts(x, h, matrices, groups)
    assert_close(h, expected_h)
    assert_close(d, expected_d)


def test_only_the_listed_groups_are_written_and_bits_do_not_depend_on_the_list() -> None:
    ids = np.argsort(np.random.default_rng(3).random((30, E)), axis=1)[:, :3].astype(np.int32)
    table, _ = expert_table()
    groups = group_by_expert(ids)
    x = 0.1 * activations(30, D)
    whole_h, whole_d = run_experts(x, table, groups, list(range(E)), 1)
    part_h, part_d = run_experts(x, table, groups, [4, 1], 3)
    listed = np.zeros(groups.token_ids.shape[0], bool)
    for g in (1, 4):
        listed[groups.offsets[g] : groups.offsets[g + 1]] = True
    for part, whole in ((part_h, whole_h), (part_d, whole_d)):
        np.testing.assert_array_equal(part[listed], whole[listed])
        assert np.isnan(part[~listed]).all()


def test_an_empty_group_is_nothing() -> None:
    table, _ = expert_table()
    x = 0.1 * activations(5, D)
    groups = ExpertGroups(
        np.array([2, 3], np.int32),
        np.array([0, 0, 5], np.int32),
        np.arange(5, dtype=np.int32),
        np.zeros((5, 1), np.int32),
    )
    h, d = run_experts(x, table, groups, [0, 1], 2)
    assert np.isfinite(h).all()
    assert np.isfinite(d).all()
