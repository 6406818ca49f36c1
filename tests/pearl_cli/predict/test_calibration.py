"""Recall and calibration error by hand, and the calibration that ranks learn while serving."""

from __future__ import annotations

import numpy as np
import pytest

from pearl_cli.predict.calibration import expected_calibration_error, recall
from pearl_cli.predict.rank_calibration import RankCalibration


def test_recall_counts_the_used_among_the_likeliest_and_skips_unknown_rows() -> None:
    p = np.array([[0.9, 0.8, 0.1, 0.2], [0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.0, 0.0]])
    y = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [np.nan] * 4])
    assert recall(p, y, 2) == 3 / 4


def test_calibration_error_by_hand() -> None:
    # Bin .2-.3 holds two pairs (mean .25, one used), bin .9-1 holds two (mean .95, both used).
    p, y = np.array([[0.2, 0.3 - 1e-9], [0.95, 0.95]]), np.array([[1.0, 0.0], [1.0, 1.0]])
    assert expected_calibration_error(p, y) == pytest.approx((0.5 + 0.1) / 4)
    assert expected_calibration_error(y, y) == 0.0


def test_ranks_learn_how_often_they_are_right() -> None:
    calibration = RankCalibration(num_layers=1, num_experts=8, num_experts_per_tok=2)
    rng = np.random.default_rng(0)
    for _ in range(600):  # rank 0 is always right, rank 1 every other time, the others never
        values = rng.random(8)
        order = np.argsort(-values)
        calibration.scores(0, values)
        used = order[[0, 1]] if rng.random() < 0.5 else np.array([order[0]])
        calibration.settle(0, used)
    assert calibration.rate[0, 0] > 0.99
    assert 0.25 < calibration.rate[0, 1] < 0.75
    assert calibration.rate[0, 2:].max() < 0.01
    scores = calibration.scores(0, np.arange(8.0))
    assert scores.argmax() == 7
    assert scores[7] == np.float32(calibration.rate[0, 0])
