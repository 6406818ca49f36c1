"""What may choose experts: the only place where anything but the model's own router can change which experts compute.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kernels.backend import Activations, Array
from models.expert_provider import RouterWeights, Routing


class RoutingPolicy(Protocol):
    name: str
    exact: bool  # True: the model's own choice, bit for bit

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        """Called before each forward call, with the arguments of `ExpertProvider.begin`."""
        ...

    def select(self, router: RouterWeights, residual: Array, a: Activations, router_logits: Array) -> Routing:
        """Choose the experts of one layer; arguments as in `ExpertProvider.select`."""
        ...
