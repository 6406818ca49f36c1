"""What may forecast expert demand. A predictor returns scores; what is fetched because of them is the prefetcher's
decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernels.backend import Activations, Array
from models.expert_provider import Routing


@dataclass(frozen=True, slots=True)
class Forecast:
    """scores float32 [E]: the probability that each expert is demanded at the next event of `layer`."""

    layer: int
    scores: np.ndarray


class Predictor(Protocol):
    name: str

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        """Called before each forward call, with the arguments of `ExpertProvider.begin`."""
        ...

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        """Called once per layer after its experts were chosen and demanded; only decode calls. Later layers of this
        token, nearest first, or earlier ones of the next. Must not use anything that later tokens or layers decide."""
        ...

    def next_use(self, layer: int) -> np.ndarray | None:
        """Expected number of the layer's events until each expert's next use, float64 [E], for eviction; None where
        there is no idea.
        """
        ...
