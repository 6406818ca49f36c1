"""Routing flags: defaults, and what does not apply is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.errors import UsageError
from pearl_cli.options import RunOptions
from pearl_cli.routing.check_counts import check_counts
from pearl_cli.routing.parse_flags import parse_routing
from pearl_cli.routing.settings import routing_settings
from pearl_cli.routing.steering import DEFAULTS, Steering, parse_steering
from pearl_cli.routing_options import ROUTINGS
from pearl_cli.sizes import Size

PLAIN = RunOptions(model=Path("m.gguf"))


def test_names_on_the_command_line_are_the_policies() -> None:
    assert [routing_settings(replace(PLAIN, routing=name)).exact for name in ROUTINGS] == [True, False, False, False]
    assert {routing_settings(replace(PLAIN, routing=name)).name for name in ROUTINGS} == set(ROUTINGS)


def test_defaults() -> None:
    assert routing_settings(PLAIN).exact
    psr = routing_settings(replace(PLAIN, routing="psr", residency=Size(percent=25)))
    assert (psr.lambda_, psr.top_j, psr.inserts, psr.residency) == (0.1, 1, 1, 0.25)
    assert psr.deterministic
    assert routing_settings(replace(PLAIN, routing="cache-prior")).inserts == 0


def test_automatic_values_stay_open() -> None:
    settings = routing_settings(replace(PLAIN, routing="psr", lambda_="auto:0.3%", inserts="auto"))
    assert (settings.lambda_, settings.lambda_price, settings.inserts) == (None, pytest.approx(0.003), None)
    assert "auto:0.3%" in settings.label()


def test_the_physical_control_is_marked() -> None:
    settings = routing_settings(replace(PLAIN, routing="cache-prior-physical"))
    assert not settings.deterministic
    assert "not deterministic" in settings.label()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lambda_": "0.1"}, "--lambda is for cache-aware routing"),
        ({"top_j": 2}, "--top-j"),
        ({"inserts": 0}, "--inserts"),
        ({"residency": Size(percent=25)}, "--residency"),
        ({"routing": "psr", "evict": "static"}, "usage|profile"),
        ({"routing": "psr", "route_trace": Path("t.csv")}, "--route-trace"),
        ({"routing": "cache-prior", "inserts": 1}, "inserts nothing"),
        ({"routing": "cache-prior", "steer": Steering(top_m=4)}, "only smoothing= applies"),
        ({"steer": Steering(top_m=4)}, "--steer is for cache-aware routing"),
        ({"routing": "cache-prior-physical", "residency": Size(percent=25)}, "--residency"),
    ],
)
def test_flags_that_do_not_apply_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        routing_settings(replace(PLAIN, **changes))


def test_a_compared_setting_inherits_cache_and_eviction_only() -> None:
    options = replace(PLAIN, routing="psr", lambda_="0.3", residency=Size(percent=25), evict="lru")
    other = parse_routing("--routing cache-prior --top-j 2", options, "--compare")
    assert (other.name, other.lambda_, other.top_j) == ("cache-prior", 0.1, 2)
    assert (other.residency, other.evict) == (0.25, "lru")
    assert parse_routing("psr --evict lfu --residency 50%", options, "/routing").residency == 0.5
    simulated = parse_routing("", options, "--compare", simulated=True)
    assert (simulated.exact, simulated.residency) == (True, 0.25)
    assert parse_routing("exact", options, "/routing").residency is None


@pytest.mark.parametrize("text", ["--routing nonsense", "--lambda x --routing psr", "--frequency 3", "'"])
def test_a_compared_setting_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--compare"):
        parse_routing(text, PLAIN, "--compare")


def test_open_choices_are_read_shown_and_read_back() -> None:
    text = "top-m=8,recency=last-use,refresh=no,bonus=0.5,smoothing=0.05,norm=this"
    assert parse_steering(text).label() == text
    assert parse_steering("refresh=yes,norm=next") == DEFAULTS
    assert DEFAULTS.label() == ""
    settings = parse_routing("psr --steer recency=last-use", PLAIN, "--compare")
    assert settings.steering == Steering(recency="last-use")
    assert "steer recency=last-use" in settings.label()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("top-m=0", "a whole number from 1"),
        ("top-m=x", "a whole number from 1"),
        ("top-m=²", "a whole number from 1"),
        ("recency=old", "one of recent, last-use"),
        ("bonus=2", "a number from 0 to 1"),
        ("bonus=nan", "a number from 0 to 1"),
        ("smoothing=0", "a number from 0.0001 to 1"),
        ("speed=3", "is not one of top-m=, recency="),
        ("top-m=8,top-m=9", "top-m= is given twice"),
        ("top-m", "is not one of"),
        ("", "is not one of"),
    ],
)
def test_open_choices_that_do_not_exist_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_routing(f"psr --steer '{text}'", PLAIN, "--compare")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--inserts ²", "write 0, 1, 2 .. or auto"),
        ("--inserts -1", "write 0, 1, 2 .. or auto"),
        (f"--lambda {'9' * 400}", "a number from 0 to 1,000,000"),
        ("--lambda nan", "a number from 0 to 1,000,000"),
        ("--residency 50", "such as 25%"),
        ("--residency 2GiB", "such as 25%"),
        ("--residency 0%", "up to 100%"),
        ("--residency 200%", "up to 100%"),
        ("--residency nan%", "such as 25%"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_what_to_write(flags: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_routing(f"psr {flags}", PLAIN, "--compare")


def test_several_steer_flags_are_one_setting() -> None:
    settings = parse_routing("psr --steer top-m=8,refresh=no --steer bonus=0.5", PLAIN, "--compare")
    assert settings.steering == Steering(top_m=8, refresh=False, bonus=0.5)
    with pytest.raises(UsageError, match="bonus= is given twice"):
        parse_routing("psr --steer bonus=1 --steer bonus=0.5", PLAIN, "--compare")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--inserts 99", r"--inserts 99: only the best 4 .* for more, --steer top-m=32; give 0 to 4"),
        ("--inserts 5", r"for more, --steer top-m=5; give 0 to 4"),
        ("--inserts 3 --steer top-m=2", r"only the best 2 .* says --steer top-m=2; give 0 to 2"),
        ("--steer top-m=33", r"--steer top-m=33: a layer of this model has 32 experts"),
        ("--top-j 5", r"--top-j 5: a token of this model uses 4 experts; give 0 to 4"),
    ],
)
def test_more_experts_than_there_are_are_refused(flags: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_counts(parse_routing(f"psr {flags}", PLAIN, "--compare"), num_experts=32, num_experts_per_tok=4)


@pytest.mark.parametrize("flags", ["--inserts 4", "--inserts 8 --steer top-m=8", "--top-j 4", "--inserts auto"])
def test_as_many_experts_as_there_are_are_not(flags: str) -> None:
    check_counts(parse_routing(f"psr {flags}", PLAIN, "--compare"), num_experts=32, num_experts_per_tok=4)
