"""Next uses by frequency: compiled, they are one over what `EmaFrequency` says after each event."""

from __future__ import annotations

import numpy as np

from pearl_cli.predict.ema import EmaFrequency, EmaNextUse


def test_expected_is_one_over_the_frequency_after_each_event() -> None:
    rng = np.random.default_rng(0)
    slow, fast = EmaFrequency(3, 16, 4), EmaNextUse(3, 16, 4)
    for step in range(300):
        layer, n_tokens = int(rng.integers(3)), 1 + step % 3
        # experts 12 and up are not used: their frequency falls to the least that is taken
        ids = np.array([rng.choice(12, 4, replace=False) for _ in range(n_tokens)], rng.choice([np.int32, np.int64]))
        frequencies = np.stack([slow.record(layer, row).copy() for row in ids])
        expected = fast.expected(layer, np.empty((n_tokens, 0), np.float32), ids)
        np.testing.assert_array_equal(expected, 1.0 / np.maximum(frequencies, 1e-6))
    assert expected.max() == 1e6


def test_a_fresh_one_remembers_nothing() -> None:
    ema, nobody = EmaNextUse(1, 8, 2), np.empty((1, 0), np.float32)
    first = ema.expected(0, nobody, np.array([[1, 2]]))
    again = ema.expected(0, nobody, np.array([[1, 2]]))
    assert (again != first).any()
    np.testing.assert_array_equal(ema.fresh().expected(0, nobody, np.array([[1, 2]])), first)
