"""The record of uses: events that were only noted are there for whoever reads, in the order in which they came."""

from __future__ import annotations

import numpy as np
import pytest

from pearl_cli.residency.history import LayerHistory


@pytest.mark.parametrize("n_events", [1, 5, 700])
@pytest.mark.parametrize("noted", [1.0, 0.6])
def test_noted_events_read_as_recorded_ones(n_events: int, noted: float) -> None:
    rng = np.random.default_rng(n_events)
    plain, lazy = LayerHistory(6), LayerHistory(6)
    for i in range(n_events):
        event = rng.permutation(6)[: 1 + i % 3].astype(np.int32)
        plain.cycle = lazy.cycle = i // 4
        plain.record(event)
        (lazy.note if rng.random() < noted else lazy.record)(event)
        assert lazy.clock == plain.clock
        if rng.random() < 0.01:
            np.testing.assert_array_equal(lazy.last_use, plain.last_use)
    for name in ("touched_cycle", "last_use", "use_count"):
        np.testing.assert_array_equal(getattr(lazy, name), getattr(plain, name))


def test_arrays_are_written_in_place_after_what_was_noted() -> None:
    history = LayerHistory(3)
    history.note(np.array([1]))
    history.use_count[1] += 5
    history.last_use[2] = 9
    assert history.use_count.tolist() == [0, 6, 0]
    assert history.last_use.tolist() == [-1, 1, 9]
