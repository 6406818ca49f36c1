"""CPU attention against the float64 reference over the same cache: grouped heads, windows, chunks, every cache type."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backend import KVLayer
from kernels.cpu import parallel
from kernels.cpu.attention import CHUNK, attention
from kernels.cpu.kv_quant import new_kv_layer
from kernels.reference.attention import attention_ref, kv_write_ref
from tests.tolerances import ATTENTION_Q8_0_RELATIVE, ATTENTION_RELATIVE


def filled_cache(
    num_kv_heads: int, length: int, head_dim: int, value_dim: int, dtype: str, v_dtype: str | None = None
) -> KVLayer:
    """A cache with `length` random positions; those after it hold NaN (or blocks with a NaN scale)."""
    rng = np.random.default_rng(length)
    cache = new_kv_layer(num_kv_heads, length + 70, head_dim, value_dim, dtype, v_dtype or dtype)
    cache.k.view(np.uint8)[:] = 0xFF
    cache.v.view(np.uint8)[:] = 0xFF
    for stored, width in ((cache.k, head_dim), (cache.v, value_dim)):
        kv_write_ref(stored, rng.standard_normal((length, num_kv_heads * width)).astype(np.float32), 0)
    return cache


def queries(n_tokens: int, width: int) -> np.ndarray:
    return np.random.default_rng(width).standard_normal((n_tokens, width)).astype(np.float32)


def tolerance(cache: KVLayer) -> float:
    return ATTENTION_Q8_0_RELATIVE if "q8_0" in (cache.k_dtype, cache.v_dtype) else ATTENTION_RELATIVE


def check(cache: KVLayer, q: np.ndarray, start: int, num_heads: int, window: int = 0) -> np.ndarray:
    found = attention(q, cache, start, num_heads, 0.17, window)
    expected = attention_ref(q, cache, start, num_heads, 0.17, window)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < tolerance(cache) * np.abs(expected).max()
    return found


WIDTHS = ((64, 64), (128, 128), (64, 32), (96, 160))
CACHES = [(dtype, *widths) for dtype in ("f32", "f16", "q8_0") for widths in WIDTHS] + [("f32", 8, 8), ("f16", 8, 8)]


@pytest.mark.parametrize(("dtype", "head_dim", "value_dim"), CACHES)
@pytest.mark.parametrize("ratio", [1, 4, 6])
def test_one_token_and_many(dtype: str, head_dim: int, value_dim: int, ratio: int, nan_poison: None) -> None:
    for n_tokens, start in ((1, 0), (1, 1), (1, 62), (1, 63), (1, 511), (5, 0), (33, 31), (70, 0)):
        cache = filled_cache(2, start + n_tokens, head_dim, value_dim, dtype)
        check(cache, queries(n_tokens, 2 * ratio * head_dim), start, 2 * ratio)


@pytest.mark.parametrize("k_dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("v_dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("ratio", [1, 4])
def test_keys_and_values_of_two_types(k_dtype: str, v_dtype: str, ratio: int, nan_poison: None) -> None:
    for n_tokens, start in ((1, 300), (7, 70)):
        cache = filled_cache(2, start + n_tokens, 64, 96, k_dtype, v_dtype)
        check(cache, queries(n_tokens, 2 * ratio * 64), start, 2 * ratio)


@pytest.mark.parametrize(("magnitude", "length"), [(1.0, 700), (0.01, 700), (12.0, 700), (1.0, 40)])
def test_q8_0_adds_little_to_what_it_has_rounded(magnitude: float, length: int) -> None:
    """Attention over a q8_0 cache differs from that over the same keys and values unrounded; whole-number queries and
    weights add at most a fiftieth to that."""
    rng = np.random.default_rng(7)
    caches = [new_kv_layer(1, length, 128, 128, dtype, dtype) for dtype in ("q8_0", "f32")]
    for stored in zip(*((cache.k, cache.v) for cache in caches), strict=True):
        rows = rng.standard_normal((length, 128)).astype(np.float32)
        for one in stored:
            kv_write_ref(one, rows, 0)
    q = magnitude * queries(1, 8 * 128)
    rounded, exact = (attention_ref(q, cache, length - 1, 8, 0.088) for cache in caches)
    added, by_cache = attention(q, caches[0], length - 1, 8, 0.088) - rounded, rounded - exact
    assert np.sqrt(np.mean(added**2)) < np.sqrt(np.mean(by_cache**2)) / 50


@pytest.mark.parametrize("window", [1, 50, 64, 300])
@pytest.mark.parametrize(("n_tokens", "start"), [(1, 40), (1, 600), (9, 300), (130, 3)])
def test_sliding_window(window: int, n_tokens: int, start: int, nan_poison: None) -> None:
    cache = filled_cache(2, start + n_tokens, 64, 64, "f16")
    check(cache, queries(n_tokens, 8 * 64), start, 8, window)


def test_large_scores_do_not_overflow() -> None:
    cache = filled_cache(1, 300, 32, 32, "f32")
    check(cache, 1e4 * queries(1, 32), 299, 1)
    check(cache, 1e4 * queries(4, 32), 296, 1)


def test_query_rows_may_lie_apart_and_do_not_depend_on_each_other() -> None:
    cache = filled_cache(2, 100, 64, 64, "f16")
    fused = queries(6, 3 * 256)
    part = fused[:, 256:512]
    together = check(cache, part, 94, 4)
    two = attention(part[4:], cache, 98, 4, 0.17)
    np.testing.assert_array_equal(two, together[4:])


@pytest.mark.parametrize(("n_tokens", "start"), [(1, 3 * CHUNK + 5), (40, 100)])
def test_threads_do_not_change_a_bit(n_tokens: int, start: int) -> None:
    cache, q = filled_cache(3, start + n_tokens, 64, 64, "f16"), queries(n_tokens, 6 * 64)
    used = parallel.num_threads()
    together = attention(q, cache, start, 6, 0.125)
    try:
        for n in range(1, parallel.max_threads() + 1):
            parallel.set_threads(n)
            np.testing.assert_array_equal(attention(q, cache, start, 6, 0.125), together)
    finally:
        parallel.set_threads(used)


@pytest.mark.parametrize(("n_tokens", "start"), [(1, 5), (1, 2 * CHUNK), (6, 3)])
def test_a_sink_takes_weight_and_has_no_value(n_tokens: int, start: int) -> None:
    """softmax over [sink, scores] without the sink's column = the plain result times sum / (sum + e^sink)."""
    cache, q = filled_cache(1, start + n_tokens, 32, 32, "f32"), queries(n_tokens, 2 * 32)
    sinks = np.array([0.3, 2.0], np.float32)
    plain = attention_ref(q, cache, start, 2, 0.17)
    keys = cache.k[0].astype(np.float64)
    expected = plain.reshape(n_tokens, 2, 32).copy()
    for t in range(n_tokens):
        for h in range(2):
            weights = np.exp(0.17 * keys[: start + t + 1] @ q[t, 32 * h : 32 * h + 32].astype(np.float64))
            expected[t, h] *= weights.sum() / (weights.sum() + np.exp(float(sinks[h])))
    found = attention(q, cache, start, 2, 0.17, sinks=sinks).reshape(n_tokens, 2, 32)
    assert np.abs(found - expected).max() < ATTENTION_RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize(("n_tokens", "start", "window"), [(1, 200, 70), (1, 700, 128), (9, 300, 60), (65, 1000, 64)])
def test_a_ring_gives_what_the_whole_cache_gives(
    dtype: str, n_tokens: int, start: int, window: int, nan_poison: None
) -> None:
    whole, slots = filled_cache(2, start + n_tokens, 64, 64, dtype), 128 if n_tokens + window <= 129 else 192
    ring = new_kv_layer(2, slots, 64, 64, dtype, dtype)
    ring.ring = True
    places = np.arange(start + n_tokens - slots, start + n_tokens)
    for stored, kept in ((ring.k, whole.k), (ring.v, whole.v)):
        stored[:, places % slots] = kept[:, places]
    q, sinks = queries(n_tokens, 8 * 64), np.arange(8, dtype=np.float32) - 4
    found = attention(q, ring, start, 8, 0.17, window, sinks)
    np.testing.assert_array_equal(found, attention(q, whole, start, 8, 0.17, window, sinks))
    expected = attention_ref(q, ring, start, 8, 0.17, window, sinks)
    assert np.abs(found - expected).max() < tolerance(ring) * np.abs(expected).max()


def test_a_ring_without_room_for_the_window_is_refused() -> None:
    ring = new_kv_layer(2, 64, 32, 32, "f16", "f16")
    ring.ring = True
    for n_tokens, window in ((1, 65), (2, 64), (1, 0)):
        for refuse in (attention, attention_ref):
            with pytest.raises(ValueError, match=r"cache|ring of 64"):
                refuse(queries(n_tokens, 64), ring, 500, 2, 0.17, window)


def test_a_nan_key_is_seen_in_the_result() -> None:
    cache = filled_cache(1, 10, 32, 32, "f16")
    cache.k[0, 4, 7] = np.nan
    assert np.isnan(attention(queries(1, 32), cache, 9, 1, 0.17)).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    cache = filled_cache(2, 4, 32, 32, "f16")
    with pytest.raises(ValueError, match="3 heads"):
        attention(queries(1, 96), cache, 0, 3, 0.17)
    with pytest.raises(ValueError, match="at 80"):
        attention(queries(1, 128), cache, 80, 4, 0.17)
