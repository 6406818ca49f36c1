"""CPU rotation and cache writes against the reference: both pairings, partial rotation, every cache type."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.backend import RopeTable
from kernels.cpu.kv_quant import new_kv_layer
from kernels.cpu.rope import rope_write
from kernels.reference.attention import kv_read_ref, kv_write_ref
from kernels.reference.rope import rope_ref
from tests.tolerances import FLOAT32_ROW_RELATIVE

G, H = 2, 4


def rope_table(n_rot: int, interleaved: bool, positions: int = 600) -> RopeTable:
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(n_rot // 2) / (n_rot // 2))
    return RopeTable(np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), n_rot, interleaved)


def fused_rows(n_tokens: int, head_dim: int, value_dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v as slices of one array, as a fused projection gives them."""
    widths = np.cumsum([H * head_dim, G * head_dim, G * value_dim])
    rows = np.random.default_rng(n_tokens).standard_normal((n_tokens, widths[-1])).astype(np.float32)
    return rows[:, : widths[0]], rows[:, widths[0] : widths[1]], rows[:, widths[1] :]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "n_rot"), [(8, 8), (64, 32), (128, 128)])
@pytest.mark.parametrize(("n_tokens", "start"), [(1, 0), (1, 511), (7, 33)])
def test_rotation_is_the_reference(interleaved: bool, head_dim: int, n_rot: int, n_tokens: int, start: int) -> None:
    q, k, v = fused_rows(n_tokens, head_dim, head_dim)
    table = rope_table(n_rot, interleaved)
    expected = rope_ref(q, table, start, head_dim), rope_ref(k, table, start, head_dim)
    rope_write(q, k, v, table, start, new_kv_layer(G, 520, head_dim, head_dim, "f32", "f32"))
    for found, wanted in zip((q, k), expected, strict=True):
        assert np.abs(found - wanted).max() < FLOAT32_ROW_RELATIVE * np.abs(wanted).max()


@pytest.mark.parametrize("k_dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("v_dtype", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("n_tokens", [1, 9])
def test_cache_holds_the_rotated_keys_and_the_values(k_dtype: str, v_dtype: str, n_tokens: int) -> None:
    head_dim, value_dim, start = 64, 32, 5
    q, k, v = fused_rows(n_tokens, head_dim, value_dim)
    cache = new_kv_layer(G, 20, head_dim, value_dim, k_dtype, v_dtype)
    cache.k.view(np.uint8)[:] = 0xA5
    rope_write(q, k, v, rope_table(head_dim, False), start, cache)
    for stored, rows in ((cache.k, k), (cache.v, v)):
        expected = np.zeros_like(stored)
        kv_write_ref(expected, rows, start)
        np.testing.assert_array_equal(stored[:, start : start + n_tokens], expected[:, start : start + n_tokens])
    assert (cache.k.view(np.uint8)[:, :start] == 0xA5).all()
    assert (cache.k.view(np.uint8)[:, start + n_tokens :] == 0xA5).all()


def test_values_beyond_half_floats_become_infinite() -> None:
    q, k, v = fused_rows(1, 8, 8)
    v[:] = 7e4
    cache = new_kv_layer(G, 2, 8, 8, "f16", "f16")
    rope_write(q, k, v, rope_table(8, False), 0, cache)
    assert np.isinf(kv_read_ref(cache.v, 1)).all()


def test_positions_past_the_end_are_refused() -> None:
    q, k, v = fused_rows(3, 8, 8)
    with pytest.raises(ValueError, match="positions up to 5"):
        rope_write(q, k, v, rope_table(8, False), 2, new_kv_layer(G, 4, 8, 8, "f32", "f32"))
    with pytest.raises(ValueError, match="rope table of 4"):
        rope_write(q, k, v, rope_table(8, False, 4), 2, new_kv_layer(G, 9, 8, 8, "f32", "f32"))


@pytest.mark.parametrize(("width", "dtype", "what"), [(12, "f16", "8"), (40, "q8_0", "32"), (64, "q4_0", "f32, f16")])
def test_cache_types_and_widths_without_a_kernel_are_refused(width: int, dtype: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        new_kv_layer(G, 4, width, width, dtype, dtype)
