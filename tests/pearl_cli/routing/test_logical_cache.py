"""The logical cache: inserts, evictions, taking back a call, and that nothing but tokens can reach it."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

import pearl_cli.routing.logical_cache as logical_module
from pearl_cli.predict.ema import EmaNextUse
from pearl_cli.residency.eviction import make_policy
from pearl_cli.routing.logical_cache import LogicalCache
from pearl_cli.routing.steering import DEFAULTS, LAST_USE, Steering

NO_TOKENS = np.zeros(1, np.int64)


def lru_cache(capacity: int = 3, num_experts: int = 8, steering: Steering = DEFAULTS) -> LogicalCache:
    return LogicalCache([capacity, None, capacity], num_experts, lambda: make_policy("lru"), steering=steering)


def use(cache: LogicalCache, layer: int, *events: list[int]) -> None:
    cache.use(layer, np.array(events, np.int32))


def members(cache: LogicalCache, layer: int) -> list[int]:
    return np.flatnonzero(cache.layer(layer).resident).tolist()


def test_inserted_experts_displace_the_least_recent_and_count_as_recent() -> None:
    cache = lru_cache()
    use(cache, 0, [0, 1], [2, 3])
    assert members(cache, 0) == [1, 2, 3]
    new, evicted = cache.insert(0, np.array([3, 5, 6]), 1)
    assert (new.tolist(), evicted.tolist()) == ([5], [1])
    assert members(cache, 0) == [2, 3, 5]
    assert np.flatnonzero(cache.ahead[0]).tolist() == [5]
    use(cache, 0, [6, 7])
    assert members(cache, 0) == [5, 6, 7]  # 2, 3 and 5 share a clock; the smaller ids leave


def test_inserted_experts_on_probation_leave_first() -> None:
    cache = lru_cache(steering=Steering(recency=LAST_USE))
    use(cache, 0, [0, 1], [2, 3])
    cache.insert(0, np.array([5]), 1)
    use(cache, 0, [2, 6])
    assert members(cache, 0) == [2, 3, 6]


def test_a_chosen_expert_is_no_longer_ahead_and_an_insert_of_nobody_changes_nothing() -> None:
    cache = lru_cache()
    use(cache, 0, [0, 1])
    cache.insert(0, np.array([5]), 1)
    use(cache, 0, [0, 5])
    assert not cache.ahead.any()
    before = state_of(cache)
    new, evicted = cache.insert(0, np.array([5, 0]), 2)
    assert not new.size
    assert not evicted.size
    assert state_of(cache) == before


@pytest.mark.parametrize(("steering", "evicted"), [(DEFAULTS, 2), (Steering(refresh=False), 1)])
def test_residents_that_are_predicted_again_count_as_used_unless_told_otherwise(
    steering: Steering, evicted: int
) -> None:
    cache = lru_cache(steering=steering)
    for event in ([0, 1], [2], [3]):
        use(cache, 0, event)
    assert members(cache, 0) == [1, 2, 3]
    assert cache.insert(0, np.array([1, 5]), 1)[1].tolist() == [evicted]


def test_a_refreshed_resident_is_touched_as_an_inserted_one_is() -> None:
    """Least-Stale protects what the running forward call has touched."""
    cache = LogicalCache([3], 8, lambda: make_policy("least-stale"))
    cache.begin(NO_TOKENS, 0, "decode")
    for event in ([0, 1], [2], [3]):
        use(cache, 0, event)
    cache.begin(NO_TOKENS, 1, "decode")
    cache.insert(0, np.array([1]), 1)
    assert cache.insert(0, np.array([5, 6]), 2)[1].tolist() == [2, 3]


def test_a_layer_without_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="layer 1 has no experts"):
        lru_cache().layer(1)


def test_a_cache_of_everything_is_full_from_the_start() -> None:
    assert members(lru_cache(capacity=8), 2) == list(range(8))
    cache = lru_cache(capacity=8)
    cache.reset()
    assert members(cache, 0) == list(range(8))


def state_of(cache: LogicalCache) -> list[object]:
    layers = [layer for layer in cache.layers if layer is not None]
    parts = [(c.resident, c.history.last_use, c.history.use_count, c.history.touched_cycle) for c in layers]
    clocks = [(c.history.clock, c.history.cycle) for c in layers]
    ranges = np.nan_to_num(cache.ranges.value, nan=-1.0).tolist()
    return [[array.tolist() for array in part] for part in parts] + [ranges, clocks, cache.ahead.tolist()]


@pytest.mark.parametrize("halfway", [1, 2])
def test_a_call_that_is_not_continued_is_taken_back(halfway: int) -> None:
    cache = lru_cache()
    cache.begin(NO_TOKENS, 0, "decode")
    for layer in (0, 2):
        use(cache, layer, [1, 2])
        cache.ranges.update(layer, 3.0)
    reference = lru_cache()
    reference.begin(NO_TOKENS, 0, "decode")
    for layer in (0, 2):
        use(reference, layer, [1, 2])
        reference.ranges.update(layer, 3.0)

    cache.begin(NO_TOKENS, 1, "decode")  # cancelled after `halfway` layers
    for layer in (0, 2)[:halfway]:
        use(cache, layer, [6, 7])
        cache.ranges.update(layer, 9.0)
        cache.insert(layer, np.array([5]), 1)
    cache.begin(NO_TOKENS, 1, "decode")
    reference.begin(NO_TOKENS, 1, "decode")
    assert state_of(cache) == state_of(reference)


def test_calls_that_are_continued_stay() -> None:
    cache = lru_cache()
    cache.begin(np.zeros(2, np.int64), 0, "prefill")
    use(cache, 0, [1, 2], [1, 3])
    cache.begin(NO_TOKENS, 2, "decode")
    assert members(cache, 0) == [1, 2, 3]


def test_reset_is_a_new_cache_with_the_same_layers() -> None:
    cache = lru_cache()
    layer = cache.layer(0)
    cache.begin(NO_TOKENS, 0, "decode")
    use(cache, 0, [1, 2])
    cache.reset()
    assert cache.layer(0) is layer
    assert state_of(cache) == state_of(lru_cache())


def test_eviction_by_a_forecast_takes_the_expert_used_last() -> None:
    cache = LogicalCache([2], 4, lambda: make_policy("pearl"), EmaNextUse(1, 4, 1))
    assert cache.needs_inputs
    x = np.zeros((1, 8), np.float32)
    cache.insert(0, np.array([3]), 1)  # before any event: no forecast yet, and room
    for expert in (0, 0, 1, 0):
        cache.use(0, np.array([[expert]]), x)
    assert members(cache, 0) == [0, 1]  # 3 was never used
    assert cache.insert(0, np.array([2]), 1)[1].tolist() == [1]
    with pytest.raises(ValueError, match="router's input"):
        cache.use(0, np.array([[1]]))


def test_nothing_that_knows_time_or_slots_is_within_reach() -> None:
    """Its imports, and theirs, stay among pure code; its methods take tokens, ids and activations only."""
    allowed = {"predict.base", "residency.cache_model", "residency.compiled_cache", "residency.eviction.base",
               "residency.history", "routing.running_range", "routing.steering", "routing.logical_cache"}  # fmt: skip
    root = Path(inspect.getfile(logical_module)).parents[1]
    waiting, seen = ["routing.logical_cache"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        tree = ast.parse((root / f"{name.replace('.', '/')}.py").read_text())
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert not {"time", "threading", "random", "os"} & set(modules), name
        waiting += [module.removeprefix("pearl_cli.") for module in modules if module.startswith("pearl_cli.")]
    assert seen <= allowed
    parameters = {name for _, method in inspect.getmembers(LogicalCache, inspect.isfunction)
                  if not method.__name__.startswith("_") for name in inspect.signature(method).parameters}  # fmt: skip
    assert parameters <= {
        "self", "layer", "topk_ids", "x", "likely", "at_most", "token_ids", "start", "phase", "slot_capacities"
    }
