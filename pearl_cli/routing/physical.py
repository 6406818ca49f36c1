"""Cache-aware routing on the physical slots: the rival that prefetch-steered routing answers, and its control.

The bonus goes to experts whose bytes have landed, so the output depends on when copies arrive. NOT DETERMINISTIC.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pearl_cli.routing.psr import PrefetchSteeredRouting

NAME = "cache-prior-physical"
MARK = "not deterministic: it depends on when copies arrive"


class PhysicalCachePrior(PrefetchSteeredRouting):
    """As PrefetchSteeredRouting, but the bonus is for `landed(layer)`: bool [E], fresh, what the slots hold now."""

    landed: Callable[[int], np.ndarray] | None = None

    def eligible(self, layer: int) -> np.ndarray:
        if self.landed is None:
            raise ValueError("routing on physical slots needs slots")
        return self.landed(layer)
