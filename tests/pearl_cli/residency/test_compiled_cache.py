"""The compiled cache decides event by event what `LayerCache` decides, whatever happens in between."""

from __future__ import annotations

import numpy as np
import pytest

from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.compiled_cache import CompiledLayerCache
from pearl_cli.residency.eviction import POLICY_NAMES, make_policy

E, K = 24, 5
COARSE = np.array([1.0, 2.0, 4.0])  # few values, so that many keys are equal


def caches(policy: str, capacity: int, rng: np.random.Generator) -> tuple[LayerCache, LayerCache]:
    popularity, cost = rng.choice(COARSE, (1, E)), rng.choice(COARSE, (1, E))
    return tuple(  # type: ignore[return-value]
        kind(0, E, capacity, make_policy(policy, popularity, seed=7, reload_cost=cost))
        for kind in (LayerCache, CompiledLayerCache)
    )


def assert_same(slow: LayerCache, fast: LayerCache) -> None:
    np.testing.assert_array_equal(slow.resident, fast.resident)
    for name in ("last_use", "use_count", "touched_cycle"):
        np.testing.assert_array_equal(getattr(slow.history, name), getattr(fast.history, name))
    assert (slow.history.clock, slow.history.cycle) == (fast.history.clock, fast.history.cycle)


@pytest.mark.parametrize("capacity", [0, 1, K - 1, K, K + 1, 12, E - 1, E])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_same_victims_in_the_same_order(policy: str, capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    slow, fast = caches(policy, capacity, rng)
    left = 0
    for step in range(150):
        ids = rng.choice(E, K, replace=False).astype(rng.choice([np.int32, np.int64]))
        forecast = rng.choice(COARSE, E)
        expected, victims = slow.event(ids, forecast), fast.event(ids, forecast)
        np.testing.assert_array_equal(victims, expected)
        left += victims.size
        if step % 7 == 0:
            slow.history.note(ids)
            fast.history.note(ids)
        if step % 11 == 0:
            slow.history.cycle += 1
            fast.history.cycle += 1
        new = np.flatnonzero(~slow.resident)[: min(2, capacity)]
        if step % 5 == 0 and new.size:
            np.testing.assert_array_equal(fast.insert(new, forecast), slow.insert(new, forecast))
        if step % 30 == 0:
            np.testing.assert_array_equal(fast.resize(capacity // 2, forecast), slow.resize(capacity // 2, forecast))
            slow.capacity = fast.capacity = capacity
        assert_same(slow, fast)
    assert (left > 0) == (capacity < E)


def test_an_event_of_residents_evicts_nobody_even_above_the_capacity() -> None:
    """Slots lent meanwhile: who is already too many leaves with the next miss."""
    slow, fast = caches("lru", 8, np.random.default_rng(0))
    for cache in (slow, fast):
        for first in (0, 4):
            cache.event(np.arange(first, first + 4))
        cache.capacity = 6
        assert cache.event(np.arange(2)).size == 0
        assert cache.event(np.array([0, 20])).tolist() == [2, 3, 4]


def test_the_same_strangers_hold_slots() -> None:
    rng = np.random.default_rng(1)
    slow, fast = caches("lru", 8, rng)
    seen = 0
    for _ in range(50):
        slow.resident[:] = fast.resident[:] = rng.random(E) < 0.4
        slot_of = np.where(rng.random(E) < 0.6, rng.integers(0, 99, E), -1).astype(np.int32)
        ids = rng.choice(E, K, replace=False).astype(np.int32)
        strangers = fast.strangers(slot_of, ids)
        np.testing.assert_array_equal(strangers, slow.strangers(slot_of, ids))
        seen += strangers.size
    assert seen > 100
