"""What may forecast expert demand: for fetching (`Predictor`) and for eviction (`NextUse`). Forecasts are numbers; what
is fetched or evicted because of them is decided in `pearl_cli.residency`.
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


class NextUse(Protocol):
    """How soon each expert is used again: a function of tokens and weights alone, never of timing or residency, so that
    a deterministic cache may evict by it.
    """

    name: str

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        """Called before each forward call, with the arguments of `ExpertProvider.begin`."""
        ...

    def expected(self, layer: int, x: np.ndarray, topk_ids: np.ndarray) -> np.ndarray:
        """Expected events of `layer` until each expert's next use, float64 [T, E], as seen right after each of T
        events. x float32 [T, D]: the router's input; topk_ids [T, K]: what was chosen. Call it exactly once per layer
        and forward call, tokens in order: what was seen is remembered."""
        ...

    def fresh(self) -> NextUse:
        """The same weights without any memory of what was seen, for a second cache."""
        ...
