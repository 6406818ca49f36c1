"""CPU linear layers: several weights and types in one call, few and many tokens, threads, slow types."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import tolerances
from quant_blocks import random_rows

from kernels.backend import Weight
from kernels.cpu import parallel
from kernels.cpu.backend import CpuBackend
from kernels.quant_types import QuantType
from kernels.reference.dequant import dequantize_weight

MIXED = (QuantType.Q4_K, QuantType.Q6_K, QuantType.F16, QuantType.Q8_0)


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return CpuBackend()


@pytest.fixture
def threads() -> Iterator[None]:
    """Put the thread count back."""
    before = parallel.num_threads()
    yield
    parallel.set_threads(before)


def make_weight(backend: CpuBackend, quant_type: QuantType, n_rows: int, n_cols: int, seed: int = 0) -> Weight:
    rows = random_rows(np.random.default_rng(seed), quant_type, n_rows, n_cols)
    return backend.weight(rows.ravel(), quant_type, n_rows, n_cols)


def activations(n_tokens: int, n_cols: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_tokens, n_cols)).astype(np.float32)


def assert_linear(got: np.ndarray, x: np.ndarray, *weights: Weight) -> None:
    """Within half a quantisation step of every activation, the error that the format allows."""
    w = np.concatenate([dequantize_weight(weight).astype(np.float64) for weight in weights])
    block = 256 if x.shape[1] % 256 == 0 else 32
    steps = np.repeat(np.abs(x.reshape(x.shape[0], -1, block)).max(2) / 254, block, axis=1)
    allowed = steps.astype(np.float64) @ np.abs(w).T + 1e-5
    assert got.shape == (x.shape[0], w.shape[0])
    assert (np.abs(got - x.astype(np.float64) @ w.T) <= allowed).all()


@pytest.mark.usefixtures("nan_poison")
@pytest.mark.parametrize("n_tokens", [1, 2, 3, 4, 5, 33])
def test_weights_of_different_types_side_by_side(backend: CpuBackend, n_tokens: int) -> None:
    weights = [make_weight(backend, t, n, 512, n) for t, n in zip(MIXED, (64, 33, 1, 17), strict=True)]
    x = activations(n_tokens, 512)
    assert_linear(backend.linear(backend.activations(x), *weights), x, *weights)


@pytest.mark.parametrize("quant_type", [QuantType.F32, QuantType.BF16], ids=lambda t: t.name)
@pytest.mark.parametrize("n_tokens", [1, 5])
def test_float_weights_see_unquantised_activations(backend: CpuBackend, quant_type: QuantType, n_tokens: int) -> None:
    weight, x = make_weight(backend, quant_type, 40, 96), activations(n_tokens, 96)
    expected = x.astype(np.float64) @ dequantize_weight(weight).astype(np.float64).T
    got = backend.linear(backend.activations(x), weight)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerances.FLOAT32_RELATIVE * np.abs(expected).max())


def test_the_bias_is_added(backend: CpuBackend) -> None:
    weight, x = make_weight(backend, QuantType.Q8_0, 24, 64), activations(3, 64)
    bias = np.arange(24, dtype=np.float32)
    plain = backend.linear(backend.activations(x), weight)
    np.testing.assert_array_equal(backend.linear(backend.activations(x), weight, bias=bias), plain + bias)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("n_tokens", [1, 3, 9])
def test_every_thread_count_gives_the_same_bits(backend: CpuBackend, n_tokens: int) -> None:
    if parallel.max_threads() < 2:
        pytest.skip("needs two cores")
    weights = [make_weight(backend, t, 37, 512) for t in MIXED]
    x, results = activations(n_tokens, 512), []
    for n in (1, 2):
        parallel.set_threads(n)
        results.append(backend.linear(backend.norm(x, np.ones(512, np.float32), 1e-6, weights), *weights))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("n_cols", [1408, 2880])
@pytest.mark.parametrize("n_tokens", [1, 6])
def test_widths_that_256_does_not_divide(backend: CpuBackend, n_cols: int, n_tokens: int) -> None:
    weight, x = make_weight(backend, QuantType.MXFP4, 8, n_cols), activations(n_tokens, n_cols)
    assert_linear(backend.linear(backend.activations(x), weight), x, weight)


@pytest.mark.parametrize("n_tokens", [1, 7])
def test_norm_makes_the_forms_that_its_readers_read(backend: CpuBackend, n_tokens: int) -> None:
    weights = [make_weight(backend, t, 16, 256) for t in MIXED]
    x, scale = activations(n_tokens, 256), np.linspace(0.5, 2, 256, dtype=np.float32)
    fused = backend.norm(x, scale, 1e-5, weights)
    assert set(fused.forms) == {"q8_32", "q8_256"}
    plain = backend.norm(x, scale, 1e-5)
    assert not plain.forms
    np.testing.assert_array_equal(fused.x, plain.x)
    np.testing.assert_array_equal(backend.linear(fused, *weights), backend.linear(plain, *weights))


def test_types_without_a_direct_kernel_run_and_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    backend, x = CpuBackend(), activations(2, 512)
    weights = [make_weight(backend, t, 20, 512) for t in (QuantType.IQ2_XXS, QuantType.Q8_0, QuantType.TQ1_0)]
    with caplog.at_level(logging.WARNING, "pearl.kernels"):
        got = [backend.linear(backend.activations(x), *weights) for _ in range(2)]
    assert [r.getMessage().split()[0] for r in caplog.records] == ["IQ2_XXS", "TQ1_0"]
    np.testing.assert_array_equal(*got)
    assert_linear(got[0], x, *weights)
    exact = x.astype(np.float64) @ dequantize_weight(weights[0]).astype(np.float64).T
    np.testing.assert_allclose(got[0][:, :20], exact, atol=tolerances.FLOAT32_RELATIVE * np.abs(exact).max())


@pytest.mark.parametrize("n_tokens", [1, 9])
def test_gated_mlp(backend: CpuBackend, n_tokens: int) -> None:
    gate, up = (make_weight(backend, QuantType.F32, 96, 64, seed) for seed in (1, 2))
    down, x = make_weight(backend, QuantType.F32, 64, 96, 3), activations(n_tokens, 64)
    g, u = (x.astype(np.float64) @ dequantize_weight(w).astype(np.float64).T for w in (gate, up))
    expected = (g / (1 + np.exp(-g)) * u) @ dequantize_weight(down).astype(np.float64).T
    got = backend.gated_mlp(backend.activations(x), gate, up, down)
    np.testing.assert_allclose(got, expected, atol=tolerances.FLOAT32_RELATIVE * np.abs(expected).max())


def test_mistakes_of_the_caller_are_named(backend: CpuBackend) -> None:
    narrow, wide = make_weight(backend, QuantType.Q8_0, 4, 64), make_weight(backend, QuantType.Q8_0, 4, 96)
    with pytest.raises(ValueError, match="different widths"):
        backend.linear(backend.activations(activations(1, 64)), narrow, wide)
    with pytest.raises(ValueError, match="width 96"):
        backend.linear(backend.activations(activations(1, 64)), wide)
    with pytest.raises(ValueError, match="contiguous"):
        backend.linear(backend.activations(activations(2, 128)[:, ::2]), narrow)
    with pytest.raises(ValueError, match="takes 272"):
        backend.weight(np.zeros(271, np.uint8), QuantType.Q8_0, 4, 64)
    with pytest.raises(ValueError, match="threads"):
        parallel.set_threads(0)
