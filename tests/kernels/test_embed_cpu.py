"""CPU embedding rows are exactly the dequantised rows of the table."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import quants

from kernels.backend import Weight
from kernels.cpu.embed import embed
from kernels.quant_types import QuantType


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


@pytest.mark.parametrize("bad", [-1, 11])
def test_an_id_outside_the_table_is_refused(bad: int) -> None:
    table = Weight(np.zeros((11, 4 * 8), np.uint8), QuantType.F32, 11, 8)
    with pytest.raises(ValueError, match="token ids"):
        embed(table, np.array([bad], np.int64))
