"""Decayed frequencies, gaps and ages on a hand-worked sequence."""

from __future__ import annotations

import numpy as np
import pytest

from pearl_cli.predict.reuse_history import DECAYS, NUM_FEATURES, ReuseHistory
from tests.tolerances import FORECAST_FLOAT32


def age(history: ReuseHistory) -> np.ndarray:
    """Events since the last use of each expert."""
    result: np.ndarray = history._clock - history._last_use
    return result


def test_frequency_gap_and_age_by_hand() -> None:
    history = ReuseHistory(num_experts=4, num_experts_per_tok=1)
    np.testing.assert_allclose(history.frequency, 0.25)
    np.testing.assert_allclose(history.gap, 4.0)
    for expert in (2, 0, 2):
        history.record(np.array([expert]))
    decay = DECAYS[0]
    assert history.frequency[0, 2] == pytest.approx((0.25 * decay + 1 - decay) * decay * decay + (1 - decay))
    assert age(history).tolist() == [1, 3, 0, 3]
    # Expert 2: a first gap of 1 event since the start, then one of 2; each moves the mean by a fifth of the difference.
    first = 4.0 + 0.2 * (1 - 4.0)
    assert history.gap[2] == pytest.approx(first + 0.2 * (2 - first))
    assert history.gap[3] == 4.0


def test_frequencies_of_a_layer_sum_to_the_experts_per_token() -> None:
    history = ReuseHistory(num_experts=8, num_experts_per_tok=2)
    rng = np.random.default_rng(0)
    for _ in range(50):
        history.record(rng.choice(8, 2, replace=False))
    np.testing.assert_allclose(history.frequency.sum(axis=1), 2.0)


def test_features_are_finite_and_rank_like_the_frequencies() -> None:
    history = ReuseHistory(num_experts=4, num_experts_per_tok=1)
    features, slowest = history.record_all(np.full((3000, 1), 1))
    assert features.shape == (3000, NUM_FEATURES, 4)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert features[-1, : len(DECAYS)].argmax(axis=1).tolist() == [1] * len(DECAYS)
    np.testing.assert_array_equal(slowest[-1], history.frequency[-1])


def test_the_compiled_form_equals_the_plain_one_and_chunks_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    ids = np.stack([rng.choice(6, 2, replace=False) for _ in range(40)])
    plain, at_once, in_two = ReuseHistory(6, 2), ReuseHistory(6, 2), ReuseHistory(6, 2)
    features, slowest = at_once.record_all(ids)
    first, second = in_two.record_all(ids[:13]), in_two.record_all(ids[13:])
    np.testing.assert_array_equal(np.concatenate([first[0], second[0]]), features)
    for t, row in enumerate(ids):
        plain.record(row)
        n, f = len(DECAYS), plain.frequency
        np.testing.assert_array_equal(slowest[t], f[-1])
        np.testing.assert_allclose(features[t, :n], np.log((f + 1e-3) / (1.001 - f)), rtol=FORECAST_FLOAT32)
        np.testing.assert_allclose(features[t, n], np.log1p(age(plain)), rtol=FORECAST_FLOAT32)
        np.testing.assert_allclose(features[t, n + 1], np.log(plain.gap), rtol=FORECAST_FLOAT32)
    np.testing.assert_array_equal(age(at_once), age(plain))
    np.testing.assert_array_equal(at_once.gap, plain.gap)
