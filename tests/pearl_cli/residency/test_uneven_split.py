"""An uneven split has the fewest misses that any split of the same bytes has, and its curves are those of replays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.slot_plan import plan_slots
from pearl_cli.residency.uneven_split import Split, miss_curves, split_slots
from pearl_cli.simulate.engine_rules import replay_engine
from pearl_cli.trace import RouteTrace, TraceWriter, read_trace

LAYERS, EXPERTS, K = 3, 6, 2
PAGE = 4096


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> RouteTrace:
    """Layer 0 uses three experts, layer 2 all; the last layer is skipped by half of the prompt, as some traces do."""
    path = tmp_path_factory.mktemp("trace") / "t.csv"
    rng = np.random.default_rng(1)
    with path.open("w") as out:
        writer = TraceWriter(out, "toy", "toy", EXPERTS, K, [PAGE] * LAYERS, [1] * LAYERS)
        for token in range(60):
            for layer in range(LAYERS):
                if layer < 2 or token > 3:
                    ids = rng.choice([3, 5, 6][layer], K, replace=False)
                    writer.write(0, int(token >= 7), token, layer, ids, np.array([0.6, 0.4], np.float32))
    return read_trace(path)


def replayed_misses(trace: RouteTrace, slots: list[int]) -> int:
    result = replay_engine(trace, slots, make_policy("lru"))
    return result.lookups - result.hits


def test_curves_count_what_replays_miss(trace: RouteTrace) -> None:
    curves = miss_curves(trace)
    for slots in itertools.product(range(K, EXPERTS + 1), repeat=LAYERS):
        assert replayed_misses(trace, list(slots)) == sum(curves[layer, c] for layer, c in enumerate(slots))
    assert (np.diff(curves, axis=1) <= 0).all()


@pytest.mark.parametrize("sizes", [[PAGE] * 3, [PAGE, 3 * PAGE, 2 * PAGE]])
@pytest.mark.parametrize("pages", [13, 17, 22, 29])
def test_no_other_split_of_these_bytes_misses_less(trace: RouteTrace, sizes: list[int], pages: int) -> None:
    split = Split.of_trace(trace)
    slots = split_slots(split, sizes, pages * PAGE)
    assert sum(c * size for c, size in zip(slots, sizes, strict=True)) <= pages * PAGE
    assert min(slots) >= K
    fitting = [
        c
        for c in itertools.product(range(K, EXPERTS + 1), repeat=LAYERS)
        if sum(n * size for n, size in zip(c, sizes, strict=True)) <= pages * PAGE
    ]
    assert replayed_misses(trace, slots) == min(replayed_misses(trace, list(c)) for c in fitting)


def test_the_layer_that_needs_least_gets_least(trace: RouteTrace) -> None:
    assert split_slots(Split.of_trace(trace), [PAGE] * 3, 12 * PAGE) == [3, 5, 4]


def test_what_is_left_over_goes_to_the_smallest_shares(trace: RouteTrace) -> None:
    flat = Split(np.zeros((LAYERS, EXPERTS + 1), np.int64), K)
    assert split_slots(flat, [PAGE] * 3, 10 * PAGE) == [4, 3, 3]
    assert split_slots(flat, [PAGE, 0, PAGE], 100 * PAGE) == [6, 0, 6]


def test_less_than_the_least_is_refused(trace: RouteTrace) -> None:
    with pytest.raises(ValueError, match="do not give each layer 2 slots"):
        split_slots(Split.of_trace(trace), [PAGE] * 3, 5 * PAGE)


def test_odd_sizes_are_rounded_up_and_never_over_the_total(trace: RouteTrace) -> None:
    sizes = [PAGE * 997, PAGE * 991, PAGE * 983]
    total = sum(sizes) * 4 + 5
    slots = split_slots(Split.of_trace(trace), sizes, total)
    assert sum(c * size for c, size in zip(slots, sizes, strict=True)) <= total
    assert sum(slots) == 12


def test_a_plan_splits_by_it_and_keeps_its_bytes(trace: RouteTrace) -> None:
    sizes, budget = [PAGE] * 3, 14 * PAGE
    even, uneven = (plan_slots(sizes, EXPERTS, budget, split=s) for s in (None, Split.of_trace(trace)))
    assert even.capacities == (4, 4, 4)
    assert uneven.capacities == (3, 5, 4)
    assert (uneven.n_bytes, uneven.staging, uneven.classes) == (even.n_bytes, even.staging, even.classes)
