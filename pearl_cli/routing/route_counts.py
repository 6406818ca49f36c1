"""What a routing policy did to the experts of decoded tokens, counted against the cache that it goes by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class RouteCounts:
    """Sums over layers and decoded tokens. uses: experts chosen; demands: of those, not in the cache when the gate
    opened; inserts: experts put into a cache ahead of its gate; agreed: chosen experts that the router's own scores of
    the same input choose too.
    """

    uses: int = 0
    demands: int = 0
    inserts: int = 0
    agreed: int = 0

    def note_choice(self, chosen: np.ndarray, own: np.ndarray, resident: np.ndarray) -> None:
        """chosen, own: ids [K]; resident: bool [E]."""
        self.uses += chosen.size
        self.demands += chosen.size - int(np.count_nonzero(resident[chosen]))
        self.agreed += len(set(chosen.tolist()).intersection(own.tolist()))

    def values(self) -> tuple[int, int, int, int]:
        """(uses, demands, inserts, agreed), to take differences of."""
        return self.uses, self.demands, self.inserts, self.agreed
