"""The shared expert's gate, on paper."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backend import Weight
from kernels.quant_types import QuantType
from kernels.reference.backend import ReferenceBackend
from models.shared_expert import SharedExpert
from tests.tolerances import PAPER_DECIMALS

BACKEND = ReferenceBackend()
SILU_OF_ONE = 1.0 / (1.0 + np.exp(-1.0))


def matrix(rows: list[list[float]]) -> Weight:
    array = np.array(rows, np.float32)
    return BACKEND.weight(array.view(np.uint8).reshape(-1), QuantType.F32, *array.shape)


@pytest.mark.parametrize(("gate", "expected"), [(2.0, 0.880797), (0.0, 0.5), (None, 1.0)])
def test_the_gate_weighs_an_output_of_one(gate: float | None, expected: float) -> None:
    """A feed-forward that gives 1 for x = [1, 0], gated by sigmoid(gate), or by nothing."""
    shared = SharedExpert(
        ffn_gate_shexp=matrix([[1.0, 5.0]]),
        ffn_up_shexp=matrix([[1.0 / SILU_OF_ONE, 7.0]]),
        ffn_down_shexp=matrix([[1.0], [1.0]]),
        ffn_gate_inp_shexp=None if gate is None else matrix([[gate, 9.0]]),
    )
    out = shared(BACKEND, BACKEND.activations(np.array([[1.0, 0.0]] * 3, np.float32)))
    assert out.shape == (3, 2)
    assert out.reshape(-1) == pytest.approx([expected] * 6, abs=PAPER_DECIMALS)
