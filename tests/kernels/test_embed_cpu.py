"""CPU embedding rows are exactly the dequantised rows of the table."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import quants
from quant_blocks import random_rows

from kernels.backend import Weight
from kernels.cpu.decode_rows import DECODED_TYPES
from kernels.cpu.embed import embed
from kernels.quant_types import QuantType, block_size, row_bytes


@pytest.mark.parametrize("quant_type", [QuantType.F32, QuantType.F16, QuantType.BF16, QuantType.Q8_0, QuantType.Q4_0])
def test_rows_are_exact(quant_type: QuantType) -> None:
    rows = np.random.default_rng(0).standard_normal((11, 96)).astype(np.float32)
    data = np.ascontiguousarray(quants.quantize(rows, quant_type)).view(np.uint8).reshape(11, -1)
    table = Weight(data, quant_type, 11, 96)
    ids = np.array([10, 0, 3, 3], np.int64)
    expected = quants.dequantize(data, quant_type).reshape(11, 96)[ids]
    found = embed(table, ids)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("quant_type", sorted(DECODED_TYPES))
@pytest.mark.parametrize("n_blocks", [1, 3])
def test_compiled_types_have_the_bits_of_the_format(quant_type: QuantType, n_blocks: int, nan_poison: None) -> None:
    """Any bytes are a block: all patterns of scales, minima and quants occur in a few hundred random rows."""
    n_cols = n_blocks * block_size(quant_type)
    data = random_rows(np.random.default_rng(n_blocks), quant_type, 300, n_cols)
    table = Weight(data, quant_type, 300, n_cols)
    ids = np.random.default_rng(1).permutation(300)
    expected = quants.dequantize(data, quant_type).reshape(300, n_cols)[ids]
    np.testing.assert_array_equal(embed(table, ids).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("quant_type", [QuantType.F32, QuantType.Q8_0])
@pytest.mark.parametrize("bad", [-1, 11])
def test_an_id_outside_the_table_is_refused(bad: int, quant_type: QuantType) -> None:
    table = Weight(np.zeros((11, row_bytes(quant_type, 32)), np.uint8), quant_type, 11, 32)
    with pytest.raises(ValueError, match="token ids"):
        embed(table, np.array([bad], np.int64))
