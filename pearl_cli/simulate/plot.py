"""Draw curves in a terminal: one letter a curve, hit rate upward, budget to the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_HEIGHT = 20
_WIDTH = 64


def plot_curves(curves: Mapping[str, Sequence[float]], budgets: Sequence[float]) -> str:
    """`curves`: name -> value in 0..1 at each of `budgets` (ascending, in per cent). Points between budgets are
    joined linearly; where curves meet the first name's letter shows."""
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT + 1)]
    letters = _letters(list(curves))
    low, high = budgets[0], budgets[-1]
    for name, values in reversed(list(curves.items())):
        for column in range(_WIDTH):
            x = low + (high - low) * column / (_WIDTH - 1)
            row = round(_interpolate(budgets, values, x) * _HEIGHT)
            grid[_HEIGHT - row][column] = letters[name]
    lines = [
        f"{100 - 100 * i // _HEIGHT:4d} % |{''.join(row).rstrip()}"
        if i % 4 == 0
        else f"       |{''.join(row).rstrip()}"
        for i, row in enumerate(grid)
    ]
    lines.append("       +" + "-" * _WIDTH)
    lines.append(f"        {low:<6g}{'experts in memory, per cent':^{_WIDTH - 12}}{high:>6g}")
    lines.append("        " + "   ".join(f"{letter} {name}" for name, letter in letters.items()))
    return "\n".join(lines)


def _interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    for i in range(len(xs) - 1):
        if x <= xs[i + 1]:
            share = (x - xs[i]) / (xs[i + 1] - xs[i])
            return ys[i] + share * (ys[i + 1] - ys[i])
    return ys[-1]


def _letters(names: list[str]) -> dict[str, str]:
    """The first letter of each name that no earlier name took."""
    taken: dict[str, str] = {}
    for name in names:
        free = [letter for letter in name.upper() + "123456789" if letter not in taken.values() and letter != "-"]
        taken[name] = free[0]
    return taken
