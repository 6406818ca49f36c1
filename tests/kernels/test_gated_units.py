"""The joins of gate and up with the numbers of case SWIGLU-LIM, and experts with biases and other units than silu,
CPU against reference.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backend import SILU, ExpertBiases, ExpertTable, GatedUnit
from kernels.cpu.backend import CpuBackend
from kernels.cpu.gated_units import join_halves, unit_address
from kernels.grouping import group_by_expert
from kernels.quant_types import QuantType
from kernels.reference.backend import ReferenceBackend
from kernels.reference.linear import gated_unit_ref
from tests.quant_blocks import random_rows
from tests.tolerances import FLOAT32_RELATIVE, FLOAT32_ROW_RELATIVE, PAPER_DECIMALS

CLAMPED = GatedUnit("clamped", 1.702, 7.0)
GELU = GatedUnit("gelu")
UNITS = {"silu": SILU, "clamped": CLAMPED, "gelu": GELU}
HIDDEN, WIDTH, EXPERTS = 256, 512, 5


def joined(unit: GatedUnit, gate: float, up: float) -> tuple[float, float]:
    """(reference, CPU)"""
    both = np.array([[gate] * 11, [up] * 11], np.float32).reshape(1, 22)
    found = join_halves(both, 11, unit)
    assert (found == found[0, 0]).all(), "the lanes and the rest disagree"
    return float(gated_unit_ref(both[:, :1], both[:, -1:], unit)[0, 0]), float(found[0, 0])


@pytest.mark.parametrize(
    ("unit", "gate", "up", "expected"),
    [
        (CLAMPED, 10, 10, 55.99963), (SILU, 10, 10, 99.99546), (CLAMPED, 1, 1, 1.691592), (SILU, 1, 1, 0.731059),
        (CLAMPED, 1, -100, -6 * 0.845796), (GELU, 1, 2, 2 * 0.841192), (GELU, -1, 1, -0.158808),
    ],
)  # fmt: skip
def test_known_values(unit: GatedUnit, gate: float, up: float, expected: float) -> None:
    for value in joined(unit, gate, up):
        assert value == pytest.approx(expected, rel=PAPER_DECIMALS)


def test_a_clamped_gate_has_no_lower_border() -> None:
    reference, cpu = joined(CLAMPED, -10, -10)
    assert reference == pytest.approx(2.43e-6, rel=2e-3)  # three digits are written down
    assert cpu == pytest.approx(reference, rel=FLOAT32_RELATIVE)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS.keys())
def test_a_range_of_values(unit: GatedUnit) -> None:
    rng = np.random.default_rng(0)
    both = (rng.standard_normal((3, 66)) * [[1.0], [5.0], [40.0]]).astype(np.float32)
    found, expected = join_halves(both, 33, unit), gated_unit_ref(both[:, :33], both[:, 33:], unit)
    assert (np.abs(found - expected).max(1) <= FLOAT32_ROW_RELATIVE * np.abs(expected).max(1)).all()
    for value in (np.nan, -1e30, 1e30):
        out = join_halves(np.array([[value, 1.0]], np.float32), 1, unit)[0, 0]
        assert np.isnan(out) == np.isnan(value)


def test_unknown_units_are_refused() -> None:
    for call in (lambda unit: unit_address(unit, False), lambda unit: gated_unit_ref(np.ones(1), np.ones(1), unit)):
        with pytest.raises(ValueError, match="'relu'"):
            call(GatedUnit("relu"))


class Layer:
    """Experts of one type with biases; what they point at is kept here."""

    def __init__(self, quant_type: QuantType, unit: GatedUnit, biased: bool = True) -> None:
        rng = np.random.default_rng(int(quant_type))
        shapes = ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
        self.kept = [[random_rows(rng, quant_type, *shape) for _ in range(EXPERTS)] for shape in shapes]
        places = [np.array([rows.ctypes.data for rows in part], np.int64) for part in self.kept]
        types = [np.full(EXPERTS, int(quant_type), np.uint8) for _ in shapes]
        rows = [rng.standard_normal((EXPERTS, n)).astype(np.float32) for n in (WIDTH, WIDTH, HIDDEN)]
        self.table = ExpertTable(*places, *types, HIDDEN, WIDTH, unit, ExpertBiases(*rows) if biased else None)


def run(backend: CpuBackend | ReferenceBackend, layer: Layer, n_tokens: int, one_by_one: bool = False) -> np.ndarray:
    """What the layer's experts add to random rows [T, D]."""
    rng = np.random.default_rng(n_tokens)
    ids = np.stack([rng.permutation(EXPERTS)[:2] for _ in range(n_tokens)]).astype(np.int32)
    groups = group_by_expert(ids)
    a = backend.activations(rng.standard_normal((n_tokens, HIDDEN)).astype(np.float32))
    h, d = backend.pair_buffers(ids.size, WIDTH, HIDDEN)
    h[:], d[:] = np.nan, np.nan
    which = np.arange(groups.expert_ids.shape[0], dtype=np.int32)
    for part in [which[i : i + 1] for i in which[::-1]] if one_by_one else [which]:
        backend.expert_gate_up(a, layer.table, groups, part, h)
        backend.expert_down(h, layer.table, groups, part, d)
    return np.asarray(backend.expert_combine(d, groups, np.full(ids.shape, 0.5, np.float32)))


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS.keys())
@pytest.mark.parametrize("quant_type", [QuantType.F32, QuantType.TQ1_0])
@pytest.mark.parametrize("n_tokens", [1, 2, 40])
def test_biased_experts(unit: GatedUnit, quant_type: QuantType, n_tokens: int) -> None:
    """TQ1_0 has no kernel of its own: it takes the slow way, which must add biases too."""
    layer = Layer(quant_type, unit)
    found, expected = run(CpuBackend(), layer, n_tokens), run(ReferenceBackend(), layer, n_tokens)
    assert np.abs(found - expected).max() <= FLOAT32_RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("quant_type", [QuantType.MXFP4, QuantType.Q8_0])
@pytest.mark.parametrize("n_tokens", [1, 3, 40])
def test_biased_experts_one_by_one_give_the_same_bits(quant_type: QuantType, n_tokens: int) -> None:
    layer, backend = Layer(quant_type, CLAMPED), CpuBackend()
    np.testing.assert_array_equal(run(backend, layer, n_tokens), run(backend, layer, n_tokens, one_by_one=True))


@pytest.mark.parametrize("n_tokens", [1, 40])
def test_biases_of_zero_change_no_bit(n_tokens: int) -> None:
    plain, biased = Layer(QuantType.Q8_0, SILU, biased=False), Layer(QuantType.Q8_0, SILU)
    assert biased.table.biases is not None
    for rows in (biased.table.biases.gate, biased.table.biases.up, biased.table.biases.down):
        rows[:] = 0
    np.testing.assert_array_equal(run(CpuBackend(), plain, n_tokens), run(CpuBackend(), biased, n_tokens))


def test_biases_that_kernels_cannot_read_are_refused() -> None:
    layer = Layer(QuantType.F32, SILU)
    assert layer.table.biases is not None
    layer.table.biases = ExpertBiases(layer.table.biases.gate[:4], layer.table.biases.up, layer.table.biases.down)
    with pytest.raises(ValueError, match="gate biases"):
        run(CpuBackend(), layer, 1)
