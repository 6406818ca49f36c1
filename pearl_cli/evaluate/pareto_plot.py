"""`pearl eval --plot OUT.svg`: what each compared setting costs in perplexity against what it saves, with the front.

Two panels share the upward axis: to the left the experts that somebody waits for (demand misses), which decide on a
fast link; to the right all copies, which decide on a slow one. Points show their setting when pointed at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from pearl_cli.evaluate.report import Result

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _GAP = 980, 440, 70, 46, 96, 40
_PANEL = (_WIDTH - _LEFT - _GAP - 20) / 2
_COLOURS = ("#000", "#777", "#c60", "#06c", "#0a5", "#a3c", "#b22", "#886")
_PANELS = (("demand_misses", "demand misses per routed expert use (waits)"),
           ("copies", "all copies per routed expert use (bytes)"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Point:
    x: float
    y: float
    low: float
    high: float
    kind: str
    size: str
    label: str


def pareto_svg(results: Sequence[Result]) -> str:
    """An SVG document of `results`, of which the first is what prices are against. Raises ValueError where a result
    counted no routes, or where there is nothing to compare.
    """
    panels = [[_point(result, name) for result in results] for name, _ in _PANELS]
    if len(results) < 2:
        raise ValueError("a plot of prices needs something to compare")
    y_high = max(0.0, *(point.high for point in panels[0]))
    y_low = min(0.0, *(point.low for point in panels[0]))
    margin = 0.08 * (y_high - y_low) or 0.001
    y_range = (y_low - margin, y_high + margin)
    kinds = list(dict.fromkeys(point.kind for point in panels[0]))
    sizes = list(dict.fromkeys(point.size for point in panels[0]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">Price in perplexity (paired, 95 %); the line joins what nothing '
        "beats in both</text>",
    ]
    for number, points in enumerate(panels):
        left = _LEFT + number * (_PANEL + _GAP)
        parts += _panel(points, _PANELS[number][1], left, y_range, (kinds, sizes), with_labels=number == 0)
    legend = [(kind, 0, _COLOURS[i % len(_COLOURS)]) for i, kind in enumerate(kinds)]
    legend += [(size, i, "#fff") for i, size in enumerate(sizes)]
    for number, (text, shape, colour) in enumerate(legend):
        x, y = _LEFT + 150 * (number % 6), _HEIGHT - 36 + 18 * (number // 6)
        parts.append(_mark(x, y - 4, shape, colour))
        parts.append(f'<text x="{x + 9}" y="{y}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other one beats or equals in both coordinates at less in one, by ascending x."""
    order = sorted(range(len(points)), key=lambda i: points[i])
    kept: list[int] = []
    for i in order:
        if not kept or points[i][1] < points[kept[-1]][1]:
            kept.append(i)
    return kept


def _point(result: Result, name: str) -> _Point:
    shares = result.scores.route_shares()
    if name not in shares:
        raise ValueError(f"{result.settings.label()} counted no routes; give --residency")
    price = result.price
    y, low, high = (price.value, price.low, price.high) if price is not None else (0.0, 0.0, 0.0)
    if math.isnan(low):
        low = high = y
    settings = result.settings
    size = "what the slots hold" if settings.residency is None else f"{100 * settings.residency:g} % of experts"
    counted = f"{name.replace('_', ' ')} {shares[name].value:.3f}"
    label = f"{settings.label()}, evict {result.evict}: {counted}, price {100 * y:+.2f} %"
    return _Point(shares[name].value, y, low, high, f"{settings.name}, {result.evict or 'no cache'}", size, label)


def _panel(
    points: Sequence[_Point],
    title: str,
    left: float,
    y_range: tuple[float, float],
    legend: tuple[list[str], list[str]],
    with_labels: bool,
) -> list[str]:
    kinds, sizes = legend
    x_high = 1.08 * max(point.x for point in points) or 1.0
    low, high = y_range

    def x_at(value: float) -> float:
        return left + _PANEL * value / x_high

    def y_at(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    bottom = _HEIGHT - _BOTTOM
    parts = []
    for tick in _ticks(0.0, x_high):
        x = x_at(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{_TOP}" stroke="#ddd"/>'
                     f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')  # fmt: skip
    for tick in _ticks(low, high):
        y = y_at(tick)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + _PANEL:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        if with_labels:
            parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * tick:+.4g} %</text>')
    parts.append(f'<text x="{left + _PANEL / 2:.1f}" y="{bottom + 36}" text-anchor="middle">{title}</text>')
    best = front([(point.x, point.y) for point in points])
    path = " ".join(f"{x_at(points[i].x):.1f},{y_at(points[i].y):.1f}" for i in best)
    parts.append(f'<polyline points="{path}" fill="none" stroke="#444" stroke-dasharray="4 3"/>')
    for point in points:
        x, colour = x_at(point.x), _COLOURS[kinds.index(point.kind) % len(_COLOURS)]
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y_at(point.low):.1f}" y2="{y_at(point.high):.1f}" '
                     f'stroke="{colour}" stroke-opacity=".4"/>')  # fmt: skip
        parts.append(_mark(x, y_at(point.y), sizes.index(point.size), colour, point.label))
    return parts


def _mark(x: float, y: float, shape: int, colour: str, label: str = "") -> str:
    """A circle, square or triangle, with a text that shows when it is pointed at."""
    corners = ((), ((-4, -4), (4, -4), (4, 4), (-4, 4)), ((0, -5), (5, 4), (-5, 4)))[shape % 3]
    title = f"<title>{escape(label)}</title>" if label else ""
    style = f'fill="{colour}" stroke="#444" stroke-width=".6"'
    if not corners:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {style}>{title}</circle>'
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{path}" {style}>{title}</polygon>'


def _ticks(low: float, high: float) -> list[float]:
    """Round values inside [low, high], four to nine of them."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 9)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
