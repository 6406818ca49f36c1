"""The running width of a layer's selection scores, which makes one bonus factor fit every layer and model."""

from __future__ import annotations

import numpy as np

from kernels.backend import NotNumbersError


class RunningRange:
    """value float64 [L]: the moving mean of (largest - smallest score) over the tokens seen, NaN before the first,
    which initialises; smoothing: weight of the newest token.
    """

    def __init__(self, num_layers: int, smoothing: float = 0.01) -> None:
        self.value = np.full(num_layers, np.nan)
        self._smoothing = smoothing

    def update(self, layer: int, width: float) -> float:
        """One token; returns the value after it. Raises NotNumbersError for scores that are no numbers."""
        if not np.isfinite(width):
            raise NotNumbersError(f"router logits of layer {layer} are not numbers")
        before = self.value[layer]
        after = width if np.isnan(before) else (1.0 - self._smoothing) * before + self._smoothing * width
        self.value[layer] = after
        return float(after)
