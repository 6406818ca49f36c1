"""In which order a layer's experts lie in a file: those that the same tokens chose beside each other, so that what a
token needs is fewer stretches of the disk.

The store finds experts by name, so any order is as good to read from as any other but for the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Choice = tuple[int, NDArray[np.int64]]  # (layer, experts that one token chose there)


def order_by_coactivation(choices: Iterable[Choice], num_layers: int, num_experts: int) -> tuple[tuple[int, ...], ...]:
    """For each layer its experts in file order. Greedy: begin with the pair chosen together most often, then put the
    expert that goes best with either end of the row at that end; ties, and experts that no token chose, by number.
    """
    together = np.zeros((num_layers, num_experts, num_experts), np.int64)
    for layer, ids in choices:
        own = np.unique(ids)
        together[layer][np.ix_(own, own)] += 1
    for counts in together:
        np.fill_diagonal(counts, 0)
    return tuple(_chain(counts) for counts in together)


def _chain(together: NDArray[np.int64]) -> tuple[int, ...]:
    n = together.shape[0]
    first, second = divmod(int(together.argmax()), n)
    row = [first] if first == second else [first, second]
    left = np.ones(n, bool)
    left[row] = False
    while left.any():
        gains = [np.where(left, together[end], -1) for end in (row[0], row[-1])]
        at_front = gains[0].max() > gains[1].max()
        best = int(gains[0].argmax()) if at_front else int(gains[1].argmax())
        row.insert(0, best) if at_front else row.append(best)
        left[best] = False
    return tuple(row)


def mean_stretches(choices: Iterable[Choice], order: Sequence[Sequence[int]] | None) -> float:
    """How many separate stretches of the file the experts that a token chose in a layer make up, on average. `order`
    None: experts by number.
    """
    places = None if order is None else [np.argsort(np.asarray(row)) for row in order]
    n_stretches = n_choices = 0
    for layer, ids in choices:
        at = np.unique(ids) if places is None else np.sort(places[layer][np.unique(ids)])
        n_stretches += 1 + int((np.diff(at) > 1).sum())
        n_choices += 1
    return n_stretches / max(1, n_choices)
