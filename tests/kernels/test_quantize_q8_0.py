"""Q8_0 in one pass equals gguf-py's, from float32 and from bfloat16, and says whether the weights were finite."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.quants import quantize

from kernels.cpu.quantize_q8_0 import quantize_q8_0
from kernels.quant_types import QuantType


def rows(n_blocks: int = 67) -> np.ndarray:
    rng = np.random.default_rng(n_blocks)
    x = (rng.standard_normal((n_blocks, 32)) * rng.exponential(size=(n_blocks, 1))).astype(np.float32)
    x[0] = 0
    if n_blocks > 3:
        x[1] = 0.5
        x[2] = np.arange(32) - 15.5  # scaled, many weights lie half way between two codes
        x[3] = 127 * np.linspace(-1, 1, 32)
    return x


def widened(halves: np.ndarray) -> np.ndarray:
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


@pytest.mark.parametrize("n_blocks", [1, 2, 67, 512])
def test_bit_exact_to_gguf_py(n_blocks: int) -> None:
    x = rows(n_blocks)
    blocks, largest = quantize_q8_0(x)
    assert largest == np.abs(x).max()
    np.testing.assert_array_equal(blocks, quantize(x, QuantType.Q8_0))
    halves = (x.view(np.uint32) >> 16).astype(np.uint16)
    blocks, largest = quantize_q8_0(halves)
    assert largest == np.abs(widened(halves)).max()
    np.testing.assert_array_equal(blocks, quantize(widened(halves), QuantType.Q8_0))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (66, 31), (30, 17)])
def test_what_is_not_finite_is_seen(bad: float, at: tuple[int, int]) -> None:
    x = rows()
    x[at] = bad
    assert not np.isfinite(quantize_q8_0(x)[1])
    assert not np.isfinite(quantize_q8_0((x.view(np.uint32) >> 16).astype(np.uint16))[1])
    x[at] = np.finfo(np.float32).max
    assert quantize_q8_0(x)[1] == np.finfo(np.float32).max


def test_nothing_is_an_empty_array() -> None:
    blocks, largest = quantize_q8_0(np.empty((0, 32), np.float32))
    assert (blocks.shape, largest) == ((0, 34), 0)


@pytest.mark.parametrize("x", [np.zeros(31, np.float32), np.zeros(32, np.float64), np.zeros((32, 2), np.float32)[:, 0]])
def test_other_arrays_are_the_callers_fault(x: np.ndarray) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        quantize_q8_0(x)


def test_halves_and_their_neighbours_round_away_from_zero() -> None:
    """The largest weight is 127, so codes are the weights rounded; neighbours of a half go to their own sides."""
    halves = np.arange(127, dtype=np.float32) + np.float32(0.5)
    values = np.concatenate([halves, np.nextafter(halves, np.float32(0)), np.nextafter(halves, np.float32(200))])
    values = np.concatenate([values[values < 127], np.float32([0, 1, 126, 1e-30])])
    values = np.concatenate([values, -values])
    x = np.full((-(-values.size // 31), 32), 127, np.float32)
    x[:, 1:].flat[: values.size] = values
    codes = quantize_q8_0(x)[0][:, 2:].view(np.int8)[:, 1:].ravel()[: values.size]
    exact = np.abs(values.astype(np.float64))
    np.testing.assert_array_equal(codes, np.sign(values) * np.floor(exact + 0.5))
