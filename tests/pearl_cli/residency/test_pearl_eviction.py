"""PEARL's rule: what is needed furthest in the future for the least reload cost leaves first."""

from __future__ import annotations

import numpy as np
import pytest

from pearl_cli.residency.cache_model import LayerCache
from pearl_cli.residency.eviction.pearl import Pearl

FORECAST = np.array([2.0, 9.0, 5.0, 1.0])


def full_cache(policy: Pearl) -> LayerCache:
    cache = LayerCache(0, 4, 3, policy)
    for expert in (0, 1, 2):
        cache.admit(expert)
    return cache


def test_the_furthest_next_use_leaves() -> None:
    cache = full_cache(Pearl())
    assert cache.event(np.array([3]), FORECAST).tolist() == [1]
    assert np.flatnonzero(cache.resident).tolist() == [0, 2, 3]


def test_of_equal_next_uses_the_cheaper_reload_leaves() -> None:
    cost = np.array([[1.0, 4.0, 1.0, 1.0]])  # 2 / 1, 9 / 4, 5 / 1
    assert full_cache(Pearl(cost)).event(np.array([3]), FORECAST).tolist() == [2]


def test_only_ratios_of_costs_matter() -> None:
    costs = [np.full((1, 4), 7.0), np.full((1, 4), 0.5)]
    assert [full_cache(Pearl(c)).event(np.array([3]), FORECAST).tolist() for c in costs] == [[1], [1]]


def test_without_a_forecast_it_refuses_to_guess() -> None:
    with pytest.raises(ValueError, match="needs a forecast"):
        full_cache(Pearl()).event(np.array([3]))
