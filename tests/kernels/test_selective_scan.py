"""The selective scan of Mamba-2: the reference by hand, and the CPU form against it, token by token and by chunks, for
rows that lie apart, any cut of a sequence and any number of threads.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernels.cpu.conv import causal_conv
from kernels.cpu.scan_chunks import CHUNK, MIN_TOKENS
from kernels.cpu.selective_scan import selective_scan
from kernels.reference.conv import causal_conv_ref
from kernels.reference.selective_scan import selective_scan_ref
from kernels.selective_scan import SelectiveScan
from tests.kernels.recurrence import assert_cuts_and_threads_change_nothing, relative_error
from tests.kernels.scan_problem import ScanProblem
from tests.tolerances import DELTA_RULE_RELATIVE, FLOAT32_ROW_RELATIVE, REFERENCE_RELATIVE

# tokens, groups, heads, state size, head width
SHAPES = [
    (1, 1, 1, 8, 8),
    (1, 2, 6, 16, 24),
    (7, 2, 6, 24, 16),
    (MIN_TOKENS - 1, 3, 3, 9, 33),
    (MIN_TOKENS, 1, 5, 130, 10),
    (CHUNK + 1, 1, 4, 128, 64),
    (100, 2, 6, 33, 17),
]
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def test_reference_by_hand() -> None:
    """One head, two tokens: what the first stored is kept by a quarter, and each token passes its input on."""
    ln2 = math.log(2.0)
    # softplus(0) = ln 2, so a decay of -2 keeps e^(-2 ln 2) = 1/4
    scan = SelectiveScan(1, 1, 2, 1, np.array([-2.0]), np.array([1.0]), np.array([10.0]))
    xbc = np.array([[3, 1, 2, 1, 0], [5, 0, 1, 1, 1]], np.float32)  # x, B and C of two
    state = np.zeros((1, 2, 1), np.float32)
    out = selective_scan_ref(xbc, np.full((2, 1), -1.0), scan, state)
    stored = ln2 * 3 * np.array([1.0, 2.0])
    after = stored / 4 + ln2 * 5 * np.array([0.0, 1.0])
    np.testing.assert_allclose(out[:, 0], [stored[0] + 30, after.sum() + 50], rtol=REFERENCE_RELATIVE)
    np.testing.assert_allclose(state[0, :, 0], after, rtol=1e-6)


def test_which_group_a_head_reads() -> None:
    """Group 0 writes 1 and group 1 writes -1: a head's answer has its group's sign."""
    scan = SelectiveScan(2, 4, 1, 1, *(np.zeros(4, np.float32) for _ in range(3)))
    xbc, dt = np.array([[1, 1, 1, 1, 1, -1, 1, 1]], np.float32), np.zeros((1, 4), np.float32)
    for function in (selective_scan_ref, selective_scan):
        out = function(xbc, dt, scan, np.zeros((4, 1, 1), np.float32))
        assert (out[0] < 0).tolist() == [False, False, True, True]


@by_shape
def test_scan_is_the_reference(shape: tuple[int, int, int, int, int], nan_poison: None) -> None:
    problem = ScanProblem(*shape)
    state, expected_state = problem.state.copy(), problem.state.copy()
    expected = selective_scan_ref(problem.xbc, problem.dt, problem.scan, expected_state)
    assert relative_error(problem.run(state), expected) < DELTA_RULE_RELATIVE
    assert relative_error(state, expected_state) < DELTA_RULE_RELATIVE


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0] < MIN_TOKENS], ids=str)
def test_a_few_tokens_may_be_cut_anywhere_and_threads_change_nothing(shape: tuple[int, int, int, int, int]) -> None:
    assert_cuts_and_threads_change_nothing(ScanProblem(*shape), shape[0])


@pytest.mark.parametrize("cut", [1, CHUNK, CHUNK + 3])
def test_a_prompt_by_chunks_goes_on_from_the_state_before(cut: int) -> None:
    problem = ScanProblem(100, 2, 4, 64, 32)
    state = problem.state.copy()
    expected_state = problem.state.copy()
    expected = selective_scan_ref(problem.xbc, problem.dt, problem.scan, expected_state)
    rows = [problem.run(state, slice(0, cut)), problem.run(state, slice(cut, None))]
    assert relative_error(np.concatenate(rows), expected) < DELTA_RULE_RELATIVE
    assert relative_error(state, expected_state) < DELTA_RULE_RELATIVE


@pytest.mark.parametrize("n_tokens", [3, CHUNK])
def test_steps_at_the_ends_of_the_range(n_tokens: int) -> None:
    """A step of +-200 forgets everything or nothing, writes much or nothing, and gives no infinity."""
    problem = ScanProblem(n_tokens, 1, 2, 8, 8)
    problem.dt[:] = np.array([[200.0, -200.0]])
    state, expected_state = problem.state.copy(), problem.state.copy()
    expected = selective_scan_ref(problem.xbc, problem.dt, problem.scan, expected_state)
    found = problem.run(state)
    assert np.isfinite(found).all()
    assert relative_error(found, expected) < DELTA_RULE_RELATIVE
    np.testing.assert_array_equal(state[1], problem.state[1])


def test_shapes_of_the_scan_that_do_not_fit_are_refused() -> None:
    problem = ScanProblem(3, 1, 2, 8, 8)
    with pytest.raises(ValueError, match="over rows"):
        selective_scan(problem.xbc[:, :-1], problem.dt, problem.scan, problem.state)
    with pytest.raises(ValueError, match="with steps"):
        selective_scan(problem.xbc, problem.dt[:2], problem.scan, problem.state)
    with pytest.raises(ValueError, match="with a state"):
        problem.run(problem.state[:, :, :4])
    with pytest.raises(ValueError, match="contiguous"):
        selective_scan(np.asfortranarray(problem.xbc), problem.dt, problem.scan, problem.state)


@pytest.mark.parametrize("n_tokens", [1, 5])
def test_a_convolution_with_a_bias(n_tokens: int) -> None:
    rng = np.random.default_rng(0)
    x, kernel, bias = (rng.standard_normal(size).astype(np.float32) for size in ((n_tokens, 33), (3, 33), 33))
    state = rng.standard_normal((2, 33)).astype(np.float32)
    expected = causal_conv_ref(x, kernel, state.copy(), True, bias)
    plain = causal_conv_ref(x, kernel, state.copy(), False)
    np.testing.assert_allclose(causal_conv_ref(x, kernel, state.copy(), False, bias), plain + bias, atol=1e-12)
    assert relative_error(causal_conv(x, kernel, state.copy(), True, bias), expected) < FLOAT32_ROW_RELATIVE
    with pytest.raises(ValueError, match=r"33 channels with a bias \(32,\)"):
        causal_conv(x, kernel, state, True, bias[:-1])
