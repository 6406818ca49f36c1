"""The ops of a gated delta net: the reference by hand, and the CPU form against it for rows that lie apart, any cut of
a sequence and any number of threads.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels.cpu.conv import causal_conv
from kernels.cpu.delta_chunks import MIN_TOKENS
from kernels.cpu.delta_rule import delta_rule
from kernels.cpu.gates import gated_norm, sigmoid_gate
from kernels.delta_rule import DELTA_NORM_EPS, DeltaRule
from kernels.reference.conv import causal_conv_ref
from kernels.reference.delta_rule import delta_rule_ref
from kernels.reference.gates import gated_norm_ref, sigmoid_gate_ref
from tests.kernels.delta_problem import Problem
from tests.kernels.recurrence import assert_cuts_and_threads_change_nothing, relative_error
from tests.tolerances import DELTA_RULE_RELATIVE, FLOAT32_ROW_RELATIVE, REFERENCE_RELATIVE

# tokens, key heads, value heads, key width, value width, tiled
SHAPES = [
    (1, 1, 1, 8, 8, False),
    (1, 2, 6, 16, 24, True),
    (7, 2, 6, 16, 24, False),
    (33, 3, 3, 33, 9, True),
    (63, 1, 5, 10, 130, False),
    (100, 2, 6, 128, 32, True),
    (15, 2, 2, 9, 17, False),
    (5, 16, 32, 128, 128, True),
]
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def test_reference_by_hand() -> None:
    """One head, two tokens. The second asks for what the first stored, kept by half and partly overwritten."""
    ln2 = math.log(2.0)
    rule = DeltaRule(1, 1, 2, 1, np.array([-1.0]), np.zeros(1), tiled=False)
    # softplus(0) = ln 2, so a gate of 0 keeps e^-ln 2 = 1/2; sigmoid(0) = 1/2 is the rate of learning
    qkv = np.array([[3, 4, 0, 5, 6], [0, 7, 0, 2, 1]], np.float32)  # q, k of width 2, v of width 1
    state = np.zeros((1, 2, 1), np.float32)
    out = delta_rule_ref(qkv, np.zeros((2, 1)), np.zeros((2, 1)), rule, state)
    stored = 0.5 * 6.0  # at key (0, 1)
    after = 0.5 * stored + 0.5 * (1.0 - 0.5 * stored)
    np.testing.assert_allclose(out[:, 0], [0.8 * stored / math.sqrt(2), after / math.sqrt(2)], rtol=1e-6)
    np.testing.assert_allclose(state[0, :, 0], [0.0, after], rtol=1e-6)
    assert np.exp(-ln2) == pytest.approx(0.5)


def test_keys_and_queries_are_made_unit_length_with_the_stated_eps() -> None:
    rule = DeltaRule(1, 1, 1, 1, np.zeros(1), np.zeros(1), tiled=False)
    tiny = math.sqrt(DELTA_NORM_EPS)
    out = delta_rule_ref(
        np.array([[tiny, tiny, 1.0]]), np.full((1, 1), 50.0), np.zeros((1, 1)), rule, np.zeros((1, 1, 1))
    )
    assert out[0, 0] == pytest.approx(0.5)  # (1 / sqrt 2) twice


@pytest.mark.parametrize(("tiled", "expected"), [(False, [0, 0, 1, 1]), (True, [0, 1, 0, 1])])
def test_which_key_head_a_value_head_reads(tiled: bool, expected: list[int]) -> None:
    """Key heads 0 and 1 hold keys 1 and -1 of width one: a value head's answer has its key head's sign."""
    rule = DeltaRule(2, 4, 1, 1, np.zeros(4), np.zeros(4), tiled)
    qkv = np.array([[1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0]], np.float32)
    gates = np.full((1, 4), 50.0, np.float32)
    out = delta_rule_ref(qkv, gates, np.zeros((1, 4)), rule, np.zeros((4, 1, 1)))
    assert (out[0] < 0).tolist() == [bool(head) for head in expected]
    constants = DeltaRule(2, 4, 1, 1, np.zeros(4, np.float32), np.zeros(4, np.float32), tiled)
    found = delta_rule(qkv, gates, np.zeros((1, 4), np.float32), constants, np.zeros((4, 1, 1), np.float32))
    assert (found[0] < 0).tolist() == [bool(head) for head in expected]


@by_shape
def test_delta_rule_is_the_reference(shape: tuple[int, int, int, int, int, bool], nan_poison: None) -> None:
    problem = Problem(*shape)
    state, expected_state = problem.state.copy(), problem.state.copy()
    expected = delta_rule_ref(problem.qkv, problem.beta, problem.alpha, problem.rule, expected_state)
    assert relative_error(problem.run(state), expected) < DELTA_RULE_RELATIVE
    assert relative_error(state, expected_state) < DELTA_RULE_RELATIVE


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] < MIN_TOKENS], ids=str)
def test_a_few_tokens_may_be_cut_anywhere_and_threads_change_nothing(
    shape: tuple[int, int, int, int, int, bool],
) -> None:
    """Prompts, which go by chunks, are in test_delta_chunks."""
    assert_cuts_and_threads_change_nothing(Problem(*shape), shape[0])


def test_gates_at_the_ends_of_the_range() -> None:
    """A gate of +-200 forgets all or nothing, learns all or nothing, and gives no infinity."""
    problem = Problem(4, 1, 2, 8, 8, False)
    problem.beta[:] = np.array([[200.0, -200.0]])
    problem.alpha[:] = np.array([[200.0, -200.0]])
    state, expected_state = problem.state.copy(), problem.state.copy()
    expected = delta_rule_ref(problem.qkv, problem.beta, problem.alpha, problem.rule, expected_state)
    found = problem.run(state)
    assert np.isfinite(found).all()
    assert relative_error(found, expected) < DELTA_RULE_RELATIVE
    np.testing.assert_array_equal(state[1], problem.state[1])


def test_shapes_of_the_delta_rule_that_do_not_fit_are_refused() -> None:
    problem = Problem(3, 1, 2, 8, 8, False)
    with pytest.raises(ValueError, match="over rows"):
        delta_rule(problem.qkv[:, :-1], problem.beta, problem.alpha, problem.rule, problem.state)
    with pytest.raises(ValueError, match="over rows"):
        delta_rule(problem.qkv, problem.beta[:2], problem.alpha, problem.rule, problem.state)
    with pytest.raises(ValueError, match="with a state"):
        problem.run(problem.state[:, :, :4])
    with pytest.raises(ValueError, match="contiguous"):
        delta_rule(np.asfortranarray(problem.qkv), problem.beta, problem.alpha, problem.rule, problem.state)


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("kernel_size", [2, 3, 4])
@pytest.mark.parametrize(("n_tokens", "width"), [(1, 1), (1, 33), (2, 63), (9, 511)])
def test_convolution_is_the_reference_and_may_be_cut(
    n_tokens: int, width: int, kernel_size: int, silu: bool, nan_poison: None
) -> None:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((n_tokens, width + 5)).astype(np.float32)[:, :width]
    kernel = rng.standard_normal((kernel_size, width)).astype(np.float32)
    before = rng.standard_normal((kernel_size - 1, width)).astype(np.float32)
    state, expected_state, pieces = before.copy(), before.copy(), before.copy()
    found = causal_conv(x, kernel, state, silu)
    expected = causal_conv_ref(x, kernel, expected_state, silu)
    assert relative_error(found, expected) < FLOAT32_ROW_RELATIVE
    np.testing.assert_array_equal(state, expected_state)
    rows = [causal_conv(x[i : i + 1], kernel, pieces, silu) for i in range(n_tokens)]
    np.testing.assert_array_equal(np.concatenate(rows), found)
    np.testing.assert_array_equal(pieces, state)


def test_convolution_by_hand() -> None:
    """Kernel (1, 10, 100) over 1 2 | 3 4: 1 + 20 + 300, 2 + 30 + 400."""
    kernel, state = np.array([[1.0], [10.0], [100.0]], np.float32), np.array([[1.0], [2.0]], np.float32)
    out = causal_conv_ref(np.array([[3.0], [4.0]], np.float32), kernel, state, silu=False)
    assert out[:, 0].tolist() == [321.0, 432.0]
    assert state[:, 0].tolist() == [3.0, 4.0]


def test_shapes_of_the_convolution_that_do_not_fit_are_refused() -> None:
    x, kernel = np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32)
    with pytest.raises(ValueError, match="a convolution by"):
        causal_conv(x, kernel, np.zeros((3, 4), np.float32), True)
    with pytest.raises(ValueError, match="a convolution by"):
        causal_conv(x, kernel[:, :3], np.zeros((2, 3), np.float32), True)


@pytest.mark.parametrize("n_tokens", [1, 6])
@pytest.mark.parametrize("width", [1, 7, 8, 63, 128])
def test_gates_are_the_reference_in_place_on_slices(n_tokens: int, width: int) -> None:
    rng = np.random.default_rng(width)
    fused = 20.0 * rng.standard_normal((n_tokens, 5 * width)).astype(np.float32)
    x, gate, weight = fused[:, : 2 * width], fused[:, 2 * width : 4 * width], rng.standard_normal(width)
    before, factor = fused.copy(), weight.astype(np.float32)
    assert sigmoid_gate(x, gate) is x
    expected = sigmoid_gate_ref(before[:, : 2 * width], gate)
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(fused[:, 2 * width :], before[:, 2 * width :])
    x[:] = before[:, : 2 * width]
    assert gated_norm(x, gate, factor, 1e-6) is x
    assert relative_error(x, gated_norm_ref(before[:, : 2 * width], gate, factor, 1e-6)) < FLOAT32_ROW_RELATIVE


def test_gates_by_hand() -> None:
    x = np.array([[3.0, 4.0]])
    assert sigmoid_gate_ref(x, np.array([[0.0, 2.0]]))[0] == pytest.approx([1.5, 4 * 0.880797], rel=1e-6)
    # RMS of (3, 4) is sqrt(12.5); silu(2) = 2 * 0.880797
    found = gated_norm_ref(x, np.array([[2.0, 2.0]]), np.array([1.0, 2.0]), 0.0)
    expected = np.array([3.0, 8.0]) / math.sqrt(12.5) * 2 * 0.8807970779778823
    np.testing.assert_allclose(found[0], expected, rtol=REFERENCE_RELATIVE)


def test_gates_that_do_not_fit_are_refused() -> None:
    x = np.zeros((2, 12), np.float32)
    with pytest.raises(ValueError, match="weighed by"):
        sigmoid_gate(x, x[:, :6])
    with pytest.raises(ValueError, match="norm weight"):
        gated_norm(x, x.copy(), np.ones(5, np.float32), 1e-6)
