"""GPU rotation, cache writes and attention against the reference: every cache type, windows, rings, sinks, splits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.backend import KVLayer, RopeTable
from kernels.gpu import attention as attention_module
from kernels.gpu.attention import attention, split_count
from kernels.gpu.backend import GpuBackend
from kernels.gpu.precision import rounded
from kernels.gpu.tiling import INTERPRETER, AttentionTile
from kernels.reference.attention import attention_ref, kv_read_ref, kv_write_ref, new_kv_ref
from kernels.reference.rope import rope_ref
from tests.tolerances import ATTENTION_RELATIVE, FLOAT32_ROW_RELATIVE

KINDS = ("f32", "f16", "q8_0")
G = 2


def filled(
    length: int, dims: tuple[int, int], kinds: tuple[str, str], capacity: int, ring: bool = False
) -> tuple[KVLayer, KVLayer]:
    """(cache for the GPU, cache for the reference) over the same memory; slots that were never written hold NaN."""
    rng = np.random.default_rng(length)
    stores = []
    for width, kind in zip(dims, kinds, strict=True):
        stored = new_kv_ref(G, capacity, width, kind)
        stored.view(np.uint8)[:] = 0xFF
        rows = rng.standard_normal((length, G * width)).astype(np.float32)
        for p in range(length):
            kv_write_ref(stored, rows[p : p + 1], p, ring)
        stores.append(stored)
    return KVLayer(*map(torch.from_numpy, stores), *kinds, ring), KVLayer(*stores, *kinds, ring)


def queries(n_tokens: int, width: int) -> np.ndarray:
    return np.random.default_rng(width).standard_normal((n_tokens, width)).astype(np.float32)


def assert_close(found: torch.Tensor, expected: np.ndarray) -> None:
    assert tuple(found.shape) == expected.shape
    assert np.abs(found.numpy() - expected).max() < ATTENTION_RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("kinds", [*zip(KINDS, KINDS, strict=True), ("q8_0", "f16"), ("f16", "q8_0")])
@pytest.mark.parametrize("dims", [(64, 64), (96, 32)])
@pytest.mark.parametrize(("n_tokens", "start", "ratio"), [(1, 300, 1), (3, 65, 4), (20, 40, 3), (1, 0, 1)])
def test_attention(
    gpu: GpuBackend, kinds: tuple[str, str], dims: tuple[int, int], n_tokens: int, start: int, ratio: int
) -> None:
    cache, same = filled(start + n_tokens, dims, kinds, 384)
    q = queries(n_tokens, G * ratio * dims[0])
    found = gpu.attention(torch.from_numpy(q), cache, start, G * ratio, 0.17)
    assert_close(found, attention_ref(q, same, start, G * ratio, 0.17))


@pytest.mark.parametrize("window", [1, 50, 64, 300])
@pytest.mark.parametrize(("n_tokens", "start"), [(1, 40), (1, 330), (9, 300), (70, 3)])
def test_sliding_window_with_sinks(gpu: GpuBackend, window: int, n_tokens: int, start: int) -> None:
    cache, same = filled(start + n_tokens, (32, 32), ("f16", "f16"), 384)
    q, sinks = queries(n_tokens, 4 * 32), np.array([0.3, 2.0, -5.0, 9.0], np.float32)
    found = gpu.attention(torch.from_numpy(q), cache, start, 4, 0.17, window, torch.from_numpy(sinks))
    assert_close(found, attention_ref(q, same, start, 4, 0.17, window, sinks))


@pytest.mark.parametrize(("n_tokens", "start"), [(1, 500), (12, 300)])
def test_a_ring_is_read_around_its_end(gpu: GpuBackend, n_tokens: int, start: int) -> None:
    cache, same = filled(start + n_tokens, (32, 32), ("f16", "f16"), 128, ring=True)
    q = queries(n_tokens, 2 * 32)
    found = gpu.attention(torch.from_numpy(q), cache, start, 2, 0.17, 60)
    assert_close(found, attention_ref(q, same, start, 2, 0.17, 60))
    with pytest.raises(ValueError, match="at 300"):
        gpu.attention(torch.from_numpy(q), cache, 300, 2, 0.17)


def test_latent_attention_in_chunks_of_the_head(gpu: GpuBackend) -> None:
    """A head of 160 in chunks of 64, and values of its first 96 columns."""
    cache, same = filled(50, (160, 96), ("f16", "f16"), 64)
    q, start = queries(1, 6 * 160), torch.tensor([49], dtype=torch.int32)
    tile = AttentionTile(16, 16, 64, 32, 1, 1)
    found = attention(torch.from_numpy(q), cache, start, 50, 6, 0.17, 0, None, INTERPRETER, gpu.memory, tile)
    assert_close(found, attention_ref(q, same, 49, 6, 0.17))


def test_covering_more_positions_than_there_are_changes_no_bit(gpu: GpuBackend) -> None:
    cache, _ = filled(300, (32, 32), ("f16", "f16"), 2048)
    q = torch.from_numpy(queries(1, 2 * 32))
    plain = gpu.attention(q, cache, 299, 2, 0.17)
    np.testing.assert_array_equal(gpu.recording(2048).attention(q, cache, 299, 2, 0.17).numpy(), plain.numpy())


@pytest.mark.parametrize("start", [3, 100, 163, 200, 491])
def test_a_window_takes_the_same_programs_at_every_position(gpu: GpuBackend, start: int) -> None:
    """Splits of 32 positions in a ring, of which a window of 100 touches five at most; tokens together or alone."""
    tile, n_tokens = AttentionTile(16, 16, 32, 32, 1, 1), 5
    assert [split_count(length, 100, 32) for length in (32, 130, 1 << 20)] == [1, 5, 5]
    cache, same = filled(start + n_tokens, (32, 32), ("f16", "f16"), 112, ring=True)
    q = torch.from_numpy(queries(n_tokens, 2 * 32))

    def found(first: int, n: int, covered: int) -> torch.Tensor:
        at = torch.tensor([start + first], dtype=torch.int32)
        rows = q[first : first + n]
        return attention(rows, cache, at, covered, 2, 0.17, 100, None, INTERPRETER, gpu.memory, tile).clone()

    together = found(0, n_tokens, start + n_tokens)
    assert_close(together, attention_ref(q.numpy(), same, start, 2, 0.17, 100))
    for t in range(n_tokens):
        for covered in (start + t + 1, 1 << 20):
            np.testing.assert_array_equal(found(t, 1, covered)[0].numpy(), together[t].numpy())


def test_query_rows_may_lie_apart_and_do_not_depend_on_each_other(gpu: GpuBackend) -> None:
    cache, _ = filled(100, (32, 32), ("f16", "f16"), 128)
    part = torch.from_numpy(queries(14, 3 * 128))[:, 128:256]
    together = gpu.attention(part, cache, 86, 4, 0.17)
    np.testing.assert_array_equal(gpu.attention(part[3:], cache, 89, 4, 0.17).numpy(), together[3:].numpy())


def test_large_scores_do_not_overflow(gpu: GpuBackend) -> None:
    cache, same = filled(120, (32, 32), ("f32", "f32"), 128)
    q = 1e4 * queries(2, 2 * 32)
    assert_close(gpu.attention(torch.from_numpy(q), cache, 118, 2, 0.17), attention_ref(q, same, 118, 2, 0.17))


@pytest.mark.parametrize("n_tokens", [1, 12])
def test_two_parts_of_eleven_bits_keep_half_float_caches_exact(
    gpu: GpuBackend, n_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch that NVIDIA's tensor cores take."""
    monkeypatch.setattr(attention_module, "attention_precision", lambda _: "tf32")
    cache, same = filled(100 + n_tokens, (64, 64), ("f16", "f16"), 128)
    q = queries(n_tokens, 4 * 64)
    found = gpu.attention(torch.from_numpy(q), cache, 100, 4, 0.17)
    assert_close(found, attention_ref(q, same, 100, 4, 0.17))


def test_rounding_to_tf32_is_to_the_nearest() -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x_ptr, out_ptr):
        i = tl.arange(0, 8)
        tl.store(out_ptr + i, rounded(tl.load(x_ptr + i), "tf32"))

    step = 2.0**-10
    x = torch.tensor([1 + 0.4 * step, 1 + 0.6 * step, -1 - 0.6 * step, 0, 0, float("inf"), -3.0, 1 + 0.5 * step])
    x[4:5].view(torch.int32).fill_(0x7FFFFFFF)  # the NaN that GPUs make
    out = torch.zeros(8)
    kernel[(1,)](x, out)
    expected = [1.0, 1 + step, -1 - step, 0.0]
    assert out[[0, 1, 2, 3]].tolist() == expected
    assert torch.isnan(out[4])
    assert out[5] == float("inf")
    assert out[6] == -3.0
    assert out[7] == 1 + step


def rope_table(n_rot: int, interleaved: bool) -> tuple[RopeTable, RopeTable]:
    angles = np.arange(64)[:, None] * 10000.0 ** (-np.arange(n_rot // 2) / (n_rot // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    on_gpu = RopeTable(torch.from_numpy(cos), torch.from_numpy(sin), n_rot, interleaved)
    return on_gpu, RopeTable(cos, sin, n_rot, interleaved)


@pytest.mark.parametrize("kinds", [*zip(KINDS, KINDS, strict=True), ("q8_0", "f32")])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "n_rot", "value_dim"), [(64, 64, 32), (96, 32, 96)])
@pytest.mark.parametrize(("n_tokens", "start"), [(1, 0), (5, 33)])
def test_rotation_and_cache_write(
    gpu: GpuBackend, kinds: tuple[str, str], interleaved: bool, head_dim: int, n_rot: int, value_dim: int,
    n_tokens: int, start: int,
) -> None:  # fmt: skip
    """On slices of one wide array; neighbours in it and in the cache stay as they are."""
    table, same = rope_table(n_rot, interleaved)
    widths = np.cumsum([3 * G * head_dim, G * head_dim, G * value_dim, 5])
    before = np.random.default_rng(n_tokens).standard_normal((n_tokens, widths[-1])).astype(np.float32)
    rows = torch.from_numpy(before.copy())
    q, k, v = rows[:, : widths[0]], rows[:, widths[0] : widths[1]], rows[:, widths[1] : widths[2]]
    cache = gpu.kv_layer(G, 40, head_dim, value_dim, *kinds)
    cache.k.view(torch.uint8).fill_(0xA5)
    cache.v.view(torch.uint8).fill_(0xA5)
    gpu.rope_write(q, k, v, table, start, cache)
    for found, begin, stop in ((q, 0, widths[0]), (k, widths[0], widths[1])):
        wanted = rope_ref(before[:, begin:stop], same, start, head_dim)
        assert np.abs(found.numpy() - wanted).max() < FLOAT32_ROW_RELATIVE * np.abs(wanted).max()
    np.testing.assert_array_equal(rows.numpy()[:, widths[1] :], before[:, widths[1] :])
    for stored, given in ((cache.k, k), (cache.v, v)):
        expected = np.full(stored.shape, 0, stored.numpy().dtype)
        expected.view(np.uint8)[:] = 0xA5
        kv_write_ref(expected, given.numpy(), start)
        np.testing.assert_array_equal(stored.numpy().view(np.uint8), expected.view(np.uint8))


def test_a_ring_is_written_around_its_end(gpu: GpuBackend) -> None:
    table, same = rope_table(32, False)
    cache = KVLayer(*(gpu.kv_layer(G, 8, 32, 32, "f32", "f32").k.clone() for _ in "kv"), "f32", "f32", ring=True)
    rows = [queries(5, G * 32) for _ in range(3)]
    gpu.rope_write(*(torch.from_numpy(r.copy()) for r in rows), table, 30, cache)
    for p in range(30, 35):
        expected = rope_ref(rows[1], same, 30, 32)[p - 30].reshape(G, 32)
        np.testing.assert_allclose(kv_read_ref(cache.k.numpy(), 8)[:, p % 8], expected, atol=1e-6)


def test_positions_and_shapes_that_do_not_fit_are_refused(gpu: GpuBackend) -> None:
    table, _ = rope_table(32, False)
    cache = gpu.kv_layer(G, 4, 32, 32, "f32", "f32")
    rows = [torch.zeros((3, G * 32)) for _ in range(3)]
    with pytest.raises(ValueError, match="positions up to 5"):
        gpu.rope_write(*rows, table, 2, cache)
    with pytest.raises(ValueError, match="rope table of 64"):
        gpu.rope_write(*rows, table, 62, gpu.kv_layer(G, 99, 32, 32, "f32", "f32"))
    with pytest.raises(ValueError, match="3 heads"):
        gpu.attention(torch.zeros((1, 96)), cache, 0, 3, 0.17)
    with pytest.raises(ValueError, match="f32, f16, q8_0"):
        gpu.kv_layer(G, 4, 64, 64, "q4_0", "f16")
