"""CPU RMS norm against the float64 reference: odd widths, rows that lie apart, any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.cpu import norm, parallel
from kernels.cpu.backend import CpuBackend
from kernels.reference.backend import ReferenceBackend
from kernels.reference.norm import head_norm_ref, norm_ref
from tests.tolerances import FLOAT32_RELATIVE, FLOAT32_ROW_RELATIVE


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("width", [1, 31, 33, 63, 511, 2048])
@pytest.mark.parametrize("n_tokens", [1, 7])
def test_norm_is_the_reference(width: int, n_tokens: int, nan_poison: None) -> None:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((n_tokens, width)).astype(np.float32)
    weight = rng.standard_normal(width).astype(np.float32)
    assert relative_error(norm.norm(x, weight, 1e-5), norm_ref(x, weight, 1e-5)) < FLOAT32_ROW_RELATIVE


def test_eps_matters_where_the_row_is_small(nan_poison: None) -> None:
    x, weight = np.full((1, 64), 1e-3, np.float32), np.ones(64, np.float32)
    assert relative_error(norm.norm(x, weight, 1e-5), norm_ref(x, weight, 1e-5)) < FLOAT32_ROW_RELATIVE
    assert norm.norm(x, weight, 1e-5)[0, 0] < 0.5


@pytest.mark.parametrize("width", [8, 64, 128])
@pytest.mark.parametrize("n_tokens", [1, 6])
def test_head_norm_works_in_place_on_a_slice(width: int, n_tokens: int) -> None:
    rng = np.random.default_rng(width)
    fused = rng.standard_normal((n_tokens, 5 * width)).astype(np.float32)
    before = fused.copy()
    weight = rng.standard_normal(width).astype(np.float32)
    part = fused[:, width : 4 * width]
    assert norm.head_norm(part, weight, 1e-6) is part
    assert relative_error(part, head_norm_ref(before[:, width : 4 * width], weight, 1e-6)) < FLOAT32_ROW_RELATIVE
    np.testing.assert_array_equal(fused[:, :width], before[:, :width])
    np.testing.assert_array_equal(fused[:, 4 * width :], before[:, 4 * width :])


def test_rows_do_not_depend_on_each_other_or_on_threads() -> None:
    rng = np.random.default_rng(3)
    x, weight = rng.standard_normal((9, 300)).astype(np.float32), rng.standard_normal(300).astype(np.float32)
    together = norm.norm(x, weight, 1e-5)
    for i in range(9):
        np.testing.assert_array_equal(norm.norm(x[i : i + 1], weight, 1e-5)[0], together[i])
    used = parallel.num_threads()
    try:
        parallel.set_threads(1)
        np.testing.assert_array_equal(norm.norm(x, weight, 1e-5), together)
    finally:
        parallel.set_threads(used)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x = np.zeros((2, 12), np.float32)
    with pytest.raises(ValueError, match="norm weight"):
        norm.norm(x, np.ones(6, np.float32), 1e-5)
    with pytest.raises(ValueError, match="norm weight"):
        norm.head_norm(x, np.ones(5, np.float32), 1e-5)


@pytest.mark.parametrize("width", [1, 33, 512])
@pytest.mark.parametrize("n_tokens", [1, 7])
def test_layer_norm_takes_the_mean_off_and_adds_a_bias(width: int, n_tokens: int) -> None:
    rng = np.random.default_rng(width)
    x = (5 + rng.standard_normal((n_tokens, width))).astype(np.float32)
    weight, bias = rng.standard_normal((2, width)).astype(np.float32)
    centred = x.astype(np.float64) - x.mean(axis=1, keepdims=True, dtype=np.float64)
    variance = (centred**2).mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(variance + 1e-5) * weight + bias
    for backend in (CpuBackend(), ReferenceBackend()):
        found = backend.layer_norm(x, weight, bias, 1e-5).x
        assert relative_error(found, expected) < FLOAT32_RELATIVE
