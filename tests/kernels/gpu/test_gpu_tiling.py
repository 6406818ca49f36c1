"""Tile choice without a GPU, and what it may never do."""

from __future__ import annotations

import dataclasses

import pytest

from kernels.gpu.tiling import (
    DECODE_TOKENS,
    INTERPRETER,
    SLOTS,
    Device,
    attention_tile,
    lanes_of,
    matmul_tile,
    next_power_of_two,
    row_tile,
)
from kernels.quant_types import QuantType

H100, L4 = Device("sm_90", 132), Device("sm_89", 58)


@pytest.mark.parametrize(("n", "expected"), [(0, 1), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_next_power_of_two(n: int, expected: int) -> None:
    assert next_power_of_two(n) == expected


@pytest.mark.parametrize("quant_type", SLOTS)
@pytest.mark.parametrize("device", [H100, L4, INTERPRETER])
@pytest.mark.parametrize("n_tokens", range(1, DECODE_TOKENS + 1))
def test_row_tiles_cover_the_tokens_in_powers_of_two(quant_type: QuantType, device: Device, n_tokens: int) -> None:
    for n_rows, n_cols in ((1, 256), (512, 2048), (151936, 2048), (2880, 2816)):
        tile = row_tile(quant_type, n_rows, n_cols, n_tokens, device)
        assert tile.block_t >= n_tokens
        for size in (tile.block_t, tile.block_n, tile.block_w, tile.num_warps):
            assert size == next_power_of_two(size)


def test_few_rows_are_spread_over_the_device() -> None:
    """A router of 64 rows takes a program a row; a vocabulary needs no such help."""
    assert row_tile(QuantType.F32, 64, 2048, 1, H100).block_n == 1
    assert row_tile(QuantType.Q4_K, 151936, 2048, 1, H100).block_n == 4
    assert row_tile(QuantType.Q4_K, 512, 2048, 1, L4).block_n > row_tile(QuantType.Q4_K, 512, 2048, 1, H100).block_n


@pytest.mark.parametrize(("n_tokens", "block_m"), [(9, 16), (16, 16), (30, 32), (512, 64)])
def test_matmul_tiles_grow_with_the_tokens(n_tokens: int, block_m: int) -> None:
    assert matmul_tile(QuantType.Q4_K, 2048, n_tokens, H100).block_m == block_m
    assert matmul_tile(QuantType.Q4_K, 2048, n_tokens, H100, two=True).block_m == min(block_m, 32)


def test_steps_are_narrower_where_wider_ones_spill() -> None:
    """As the compile matrix has found it; the rest of the shape stays."""
    l40s = Device("sm_89", 142)
    for quant_type, width in ((QuantType.Q5_K, 8), (QuantType.IQ4_NL, 8), (QuantType.Q4_K, 16), (QuantType.Q8_0, 32)):
        tile = matmul_tile(quant_type, 2048, 512, l40s)
        assert tile.block_w == width
        assert dataclasses.replace(tile, block_w=0) == dataclasses.replace(
            matmul_tile(quant_type, 2048, 512, H100), block_w=0
        )
    assert matmul_tile(QuantType.Q5_K, 2048, 512, l40s, two=True).block_w == 16
    assert [attention_tile(576, n_rows, 4096, H100).block_d for n_rows in (1, 16, 17, 512)] == [64, 64, 32, 32]


def test_splits_do_not_depend_on_the_position_and_stay_few() -> None:
    for capacity in (100, 4096, 131072, 1 << 20):
        tile = attention_tile(128, 1, capacity, H100)
        assert tile == attention_tile(128, 1, capacity, Device("sm_90", 99))
        assert -(-capacity // tile.split_length) <= 128
        assert tile.split_length % tile.block_l == 0


def test_types_and_widths_without_a_kernel_are_named() -> None:
    assert lanes_of(QuantType.Q4_K, 512) == 64
    with pytest.raises(ValueError, match=r"IQ2_XXS has no GPU kernel; there are F32, .*MXFP4"):
        lanes_of(QuantType.IQ2_XXS, 256)
    with pytest.raises(ValueError, match="blocks of 256"):
        lanes_of(QuantType.Q4_K, 300)
