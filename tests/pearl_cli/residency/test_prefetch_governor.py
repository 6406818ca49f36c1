"""Whether a forecast is worth its read, and whether forecasts on the whole are: off, rehearsed, on again."""

from __future__ import annotations

import pytest

from pearl_cli.residency.prefetch_governor import PrefetchGovernor
from pearl_cli.residency.stats import TransferStats

NOTHING_READ = TransferStats()


def settle(governor: PrefetchGovernor, count: int, useful_of: int) -> None:
    """`count` forecasts, of which one in `useful_of` was useful."""
    for i in range(count):
        governor.settle(useful=i % useful_of == 0)


def observe(governor: PrefetchGovernor, tokens: int) -> list[str]:
    """What is said in so many tokens."""
    said = [governor.observe_link(NOTHING_READ) for _ in range(tokens)]
    return [line for line in said if line is not None]


def switched_off() -> PrefetchGovernor:
    governor = PrefetchGovernor(now=lambda: 0.0)
    governor.link_load = 0.5
    settle(governor, 200, useful_of=5)
    observe(governor, 16)
    assert not governor.enabled
    return governor


@pytest.mark.parametrize(("load", "bound"), [(0.0, 0.05), (0.25, 0.1), (0.5, 0.25), (0.64, 0.372), (1.0, 1.0)])
def test_threshold_is_where_saved_stall_meets_delay(load: float, bound: float) -> None:
    governor = PrefetchGovernor()
    governor.link_load = load
    assert governor.threshold == pytest.approx(bound, rel=1e-2)


def test_the_load_is_the_share_of_time_that_demands_keep_the_link() -> None:
    clock = {"now": 0.0}
    governor = PrefetchGovernor(now=lambda: clock["now"])
    stats = TransferStats()
    for _ in range(200):
        governor.observe_link(stats)
        clock["now"] += 1.0
        stats.demand_bytes += 100
        stats.prefetch_bytes += 100
        stats.busy_s += 0.8  # half of it for forecasts
    assert governor.link_load == pytest.approx(0.4, rel=1e-3)


def test_useless_forecasts_are_switched_off_and_said() -> None:
    governor = PrefetchGovernor(now=lambda: 0.0)
    governor.link_load = 0.5
    settle(governor, 200, useful_of=5)
    assert observe(governor, 15) == []  # hundreds in the first tokens are a guess of what has not learned yet
    (verdict,) = observe(governor, 1)
    assert "switched off: 5.0 experts fetched for each one used, link 50% busy with demands" in verdict
    assert "looked at again after 256 tokens" in verdict
    assert not governor.enabled


def test_useful_forecasts_stay_on() -> None:
    governor = PrefetchGovernor(now=lambda: 0.0)
    governor.link_load = 0.5
    for i in range(400):
        governor.settle(useful=i % 3 == 0)
        assert governor.observe_link(NOTHING_READ) is None
    assert governor.enabled


def test_after_a_rest_they_are_rehearsed_and_go_on_where_they_would_pay() -> None:
    governor = switched_off()
    assert observe(governor, 255) == []
    assert not governor.rehearsing
    observe(governor, 1)
    assert governor.rehearsing
    settle(governor, 90, useful_of=3)
    assert observe(governor, 31) == []
    (said,) = observe(governor, 1)
    assert said == "prefetching on again: of 90 experts that it would have fetched 30 were used"
    assert governor.enabled
    assert not governor.rehearsing


@pytest.mark.parametrize(("count", "useful_of"), [(90, 5), (15, 1)])
def test_a_rehearsal_that_would_not_pay_or_hardly_fetch_makes_the_next_rest_longer(count: int, useful_of: int) -> None:
    governor = switched_off()
    for rest in (256, 512, 1024):
        assert observe(governor, rest - 1) == []
        assert not governor.rehearsing
        observe(governor, 1)
        assert governor.rehearsing
        settle(governor, count, useful_of)
        assert observe(governor, 32) == []
        assert not governor.enabled
        assert not governor.rehearsing


def test_a_restart_forgets_how_long_the_rests_have_become() -> None:
    governor = switched_off()
    observe(governor, 256 + 32)
    governor.restart()
    assert governor.enabled
    settle(governor, 200, useful_of=5)
    (verdict,) = observe(governor, 16)
    assert "after 256 tokens" in verdict
