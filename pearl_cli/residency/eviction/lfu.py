"""Evict the least frequently used expert, the least recent among equals."""

from __future__ import annotations

import numpy as np

from pearl_cli.residency.history import LayerHistory

_CLOCK_BITS = 31  # a layer sees fewer than 2^31 tokens, so (count, last use) packs into one int64


class LFU:
    name = "lfu"

    def keys(self, layer: int, history: LayerHistory, forecast: np.ndarray | None) -> np.ndarray:
        return (history.use_count << _CLOCK_BITS) + history.last_use
