"""Each policy's victims on histories worked out by hand; one event per token; ties to the smaller id."""

from __future__ import annotations

import numpy as np
import pytest

from models.errors import UsageError
from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.eviction import POLICY_NAMES, make_policy
from pearl_cli.residency.eviction.base import choose_victims

# Events 1..5. Uses: expert 0 at 1, 2, 3; 1 at 1, 5; 2 at 2, 4; 3 at 4; 4 at 5.
EVENTS = [[0, 1], [0, 2], [0], [2, 3], [1, 4]]


def victims_after(name: str, count: int) -> list[int]:
    cache = LayerCache(0, 6, 6, make_policy(name, np.array([[5, 1, 9, 2, 2, 0]])))
    for event in EVENTS:
        cache.event(np.array(event))
    keys = cache.policy.keys(0, cache.history, None)
    return choose_victims(keys, np.flatnonzero(cache.resident), count).tolist()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lru", [0, 2, 3, 1, 4]),  # last use 3, 4, 4, 5, 5
        ("lfu", [3, 4, 2, 1, 0]),  # counts 1, 1, 2, 2, 3; among equals the older last use
        ("lfru", [3, 0, 2, 4, 1]),  # 1/2, 3/3, 2/2, 1/1, 2/1
        ("static", [1, 3, 4, 0, 2]),  # popularity 1, 2, 2, 5, 9
        ("least-stale", [0, 2, 3, 1, 4]),  # one cycle for all: as lru
    ],
)
def test_order_of_eviction(name: str, expected: list[int]) -> None:
    assert victims_after(name, 5) == expected
    assert victims_after(name, 1) == expected[:1]


def test_least_stale_spares_what_the_running_call_touched() -> None:
    cache = LayerCache(0, 4, 4, make_policy("least-stale"))
    cache.history.cycle = 1
    cache.event(np.array([0]))
    cache.event(np.array([1]))
    cache.history.cycle = 2
    cache.history.touched_cycle[0] = 2  # fetched on a forecast of this call
    keys = cache.policy.keys(0, cache.history, None)
    assert choose_victims(keys, np.array([0, 1]), 1).tolist() == [1]


def test_random_is_a_function_of_the_seed() -> None:
    def victims(seed: int) -> list[int]:
        cache = LayerCache(0, 32, 4, make_policy("random", seed=seed))
        return [int(v) for i in range(64) for v in cache.event(np.array([i * 7 % 32, (i * 7 + 1) % 32]))]

    assert victims(3) == victims(3) != victims(4)


def test_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=", ".join(POLICY_NAMES)):
        make_policy("clock")


def test_static_without_a_profile_is_refused() -> None:
    with pytest.raises(UsageError, match="usage profile"):
        make_policy("static")


def test_members_of_an_event_are_one_event() -> None:
    """Recorded one by one, 0 would be evicted for 2; as one event the old resident 3 goes."""
    cache = LayerCache(0, 4, 3, make_policy("lru"))
    cache.event(np.array([3]))
    cache.event(np.array([0, 1, 2]))
    assert np.flatnonzero(cache.resident).tolist() == [0, 1, 2]
    assert cache.history.last_use.tolist() == [2, 2, 2, 1]


def test_an_event_larger_than_the_layer_keeps_what_fits() -> None:
    cache = LayerCache(0, 5, 2, make_policy("lru"))
    cache.event(np.array([4]))
    assert sorted(cache.event(np.array([3, 0, 2])).tolist()) == [0, 4]
    assert np.flatnonzero(cache.resident).tolist() == [2, 3]


def test_no_capacity_keeps_nothing() -> None:
    cache = LayerCache(0, 4, 0, make_policy("lru"))
    assert sorted(cache.event(np.array([1, 2])).tolist()) == [1, 2]
    assert not cache.resident.any()


def test_counts_survive_eviction() -> None:
    cache = LayerCache(0, 3, 1, make_policy("lfu"))
    for ids in ([0], [1], [0]):
        cache.event(np.array(ids))
    assert cache.history.use_count.tolist() == [2, 1, 0]
