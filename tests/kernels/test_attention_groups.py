"""Query rows of a group go through a cache block together: same bits as alone, in every inner loop, for any length."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels.backend import KVLayer
from kernels.cpu.attention import CHUNK, LONGEST_CHUNK, attention, chunk_positions, group_sizes
from kernels.cpu.attention_rows import SIZES
from kernels.cpu.attention_values import BLOCK
from kernels.cpu.features import ISAS, TARGET, runnable
from kernels.cpu.kv_quant import new_kv_layer
from kernels.reference.attention import attention_ref, kv_write_ref
from tests.tolerances import ATTENTION_Q8_0_RELATIVE, ATTENTION_RELATIVE

DTYPES = ("f32", "f16", "q8_0")
TOLERANCES = {"f32": ATTENTION_RELATIVE, "f16": ATTENTION_RELATIVE, "q8_0": ATTENTION_Q8_0_RELATIVE}


def one_head_cache(length: int, dtype: str, width: int = 64) -> KVLayer:
    rng = np.random.default_rng(length)
    cache = new_kv_layer(1, length, width, width, dtype, dtype)
    for stored in (cache.k, cache.v):
        kv_write_ref(stored, rng.standard_normal((length, width)).astype(np.float32), 0)
    return cache


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ratio", [2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("start", [0, 20, 63, 1100])
def test_a_head_beside_others_has_the_bits_it_has_alone(dtype: str, ratio: int, start: int) -> None:
    cache = one_head_cache(start + 1, dtype)
    q = np.random.default_rng(ratio).standard_normal((1, ratio * 64)).astype(np.float32)
    together = attention(q, cache, start, ratio, 0.17).reshape(ratio, 64)
    for h in range(ratio):
        alone = attention(np.ascontiguousarray(q[:, 64 * h : 64 * h + 64]), cache, start, 1, 0.17)
        np.testing.assert_array_equal(alone[0], together[h])


@pytest.mark.parametrize("ratio", range(1, 19))
def test_groups_cover_the_rows_of_a_token_and_of_any_prompt(ratio: int) -> None:
    for n_tokens in (1, 2, 3, 9, 40):
        sizes, rest = group_sizes(ratio, n_tokens), n_tokens * ratio
        assert set(sizes) <= set(SIZES)
        for size in sizes:
            rest %= size
        assert rest == 0


def test_chunks_are_whole_blocks_and_grow_with_the_cache() -> None:
    lengths = [1, CHUNK, 5000, 8192, 40_000, 10**6]
    chunks = [chunk_positions(n) for n in lengths]
    assert chunks == sorted(chunks)
    assert (chunks[0], chunks[-1]) == (CHUNK, LONGEST_CHUNK)
    assert all(n % BLOCK == 0 for n in chunks)
    assert chunk_positions(8192) > CHUNK


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cache_of_longer_chunks(dtype: str) -> None:
    start = 5000
    assert chunk_positions(start + 1) > CHUNK
    cache, q = one_head_cache(start + 1, dtype), np.random.default_rng(0).standard_normal((1, 8 * 64), np.float32)
    expected = attention_ref(q, cache, start, 8, 0.17)
    found = attention(q, cache, start, 8, 0.17)
    assert np.abs(found - expected).max() < TOLERANCES[dtype] * np.abs(expected).max()


@pytest.mark.parametrize("value", [1.0, -1.0, 3e-30, 0.0])
def test_queries_of_one_magnitude_fit_their_digits(value: float) -> None:
    """Every component is the largest one, which the q8_0 path turns into the largest whole number it can hold."""
    cache = one_head_cache(70, "q8_0")
    q = np.full((1, 4 * 64), value, np.float32)
    q[0, ::3] *= -1
    expected = attention_ref(q, cache, 69, 4, 0.17)
    found = attention(q, cache, 69, 4, 0.17)
    assert np.abs(found - expected).max() < ATTENTION_Q8_0_RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_in_a_query_or_a_scale_reaches_the_result(dtype: str) -> None:
    cache, q = one_head_cache(40, dtype), np.ones((1, 2 * 64), np.float32)
    q[0, 64 + 5] = np.nan
    found = attention(q, cache, 39, 2, 0.17)[0]
    assert np.isnan(found[64:]).all()
    assert np.isfinite(found[:64]).all()
    cache.v.view(np.uint8)[0, 7, :4] = 0xFF
    assert np.isnan(attention(np.ones((1, 64), np.float32), cache, 39, 1, 0.17)[0, 0])


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != TARGET.isa and runnable(isa)])
def test_other_inner_loops(isa: str) -> None:
    """The instruction set is chosen at import, so each has a process of its own that runs some tests of this file."""
    here = Path(__file__).resolve()
    chosen = "longer_chunks or one_magnitude or a_nan or 63-7"  # 63-7: seven heads beside each other
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, str(here)]
    done = subprocess.run(
        command,
        cwd=here.parents[2],
        env={**os.environ, "PEARL_CPU": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-500:]
