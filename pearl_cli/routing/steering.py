"""The choices that the published description of prefetch-steered routing leaves open: one value each, with its default.

`--steer KEY=VALUE,...` sets them for experiments; BENCHMARKS.md holds what each of them is worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

RECENT, LAST_USE = "recent", "last-use"
NEXT_NORM, THIS_NORM = "next", "this"


@dataclass(frozen=True, slots=True)
class Steering:
    """top_m: of how many best experts of the next router inserts are taken, None: as many as a token uses.
    recency: an inserted expert counts as used with the layer's newest token ("recent") or as of its last use
    ("last-use": it is on probation, and leaves first unless it is chosen). refresh: residents that are predicted again
    count as used now. bonus: share of the bonus that an inserted expert has until it is chosen once. smoothing: weight
    of the newest token in the running width of the scores, in (0, 1]. norm: the next router reads the residual behind
    its own norm ("next") or as the current layer's norm left it ("this").
    """

    top_m: int | None = None
    recency: str = RECENT
    refresh: bool = True
    bonus: float = 1.0
    smoothing: float = 0.01
    norm: str = NEXT_NORM

    def label(self) -> str:
        """As `--steer` takes it; empty where all is default."""
        return self._text([f.name for f in fields(self) if getattr(self, f.name) != f.default])

    def key(self) -> str:
        """All of it, for files that outlive a default."""
        return self._text([f.name for f in fields(self)])

    def _text(self, names: list[str]) -> str:
        return ",".join(f"{name.replace('_', '-')}={_shown(getattr(self, name))}" for name in names)


DEFAULTS = Steering()


def parse_steering(text: str) -> Steering:
    """`top-m=8,recency=last-use,refresh=no`. Raises ValueError that says what is wrong."""
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        parse = _PARSERS.get(key)
        if parse is None or not equals:
            raise ValueError(f"'{part}' is not one of {', '.join(f'{name}=' for name in _PARSERS)}")
        name = key.replace("-", "_")
        if name in values:
            raise ValueError(f"{key}= is given twice")
        values[name] = parse(key, value)
    return Steering(**values)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(key: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"{key}={value}: a whole number from 1")
    return int(value)


def _number(low: float, high: float) -> Callable[[str, str], float]:
    def parse(key: str, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise ValueError(f"{key}={value}: a number from {low:g} to {high:g}")
        return number

    return parse


def _one_of(choices: dict[str, Any]) -> Callable[[str, str], Any]:
    def parse(key: str, value: str) -> Any:
        if value not in choices:
            raise ValueError(f"{key}={value}: one of {', '.join(choices)}")
        return choices[value]

    return parse


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "top-m": _count,
    "recency": _one_of({RECENT: RECENT, LAST_USE: LAST_USE}),
    "refresh": _one_of({"yes": True, "no": False}),
    "bonus": _number(0.0, 1.0),
    "smoothing": _number(1e-4, 1.0),
    "norm": _one_of({NEXT_NORM: NEXT_NORM, THIS_NORM: THIS_NORM}),
}
