"""Pin the experts that were most popular in an earlier trace or profile; whatever else is demanded leaves at the next
event.
"""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.history import LayerHistory


class Static:
    name = "static"

    def __init__(self, popularity: np.ndarray) -> None:
        """popularity: [L, E] use counts, not changed."""
        self._popularity = popularity

    def keys(self, layer: int, history: LayerHistory, forecast: np.ndarray | None) -> np.ndarray:
        row: np.ndarray = self._popularity[layer]
        return row
