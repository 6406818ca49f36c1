"""The closed form of the expected next use against the sum it stands for, and its ends."""

from __future__ import annotations

import numpy as np
import pytest

from pearl_cli.predict.expected_next_use import expected_next_use
from tests.tolerances import FORECAST_TOLERANCE


@pytest.mark.parametrize("horizon", [1, 2, 4, 7])
def test_equals_the_written_out_sum(horizon: int) -> None:
    rng = np.random.default_rng(horizon)
    p, tail = rng.random((3, horizon, 5)), rng.random((3, 5)) * 20
    expected, silent = np.zeros((3, 5)), np.ones((3, 5))
    for k in range(1, horizon + 1):
        expected += k * p[:, k - 1] * silent
        silent *= 1 - p[:, k - 1]
    expected += (horizon + tail) * silent
    np.testing.assert_allclose(expected_next_use(p, tail), expected, rtol=FORECAST_TOLERANCE)


def test_certain_use_and_certain_silence() -> None:
    p = np.array([[1.0, 0.0, 0.0], [0.3, 1.0, 0.0]], np.float32)
    np.testing.assert_allclose(expected_next_use(p, np.array([9.0, 9.0, 9.0])), [1.0, 2.0, 11.0])
