"""What may choose experts: the only place where anything but the model's own router can change which experts compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kernels.backend import Activations, Array
from models.expert_provider import RouterWeights, Routing

if TYPE_CHECKING:
    from pearl_cli.routing.logical_cache import LogicalCache


@dataclass(frozen=True, slots=True)
class Inserted:
    """Experts that a policy has just put into the cache of a later `layer`, ahead of its gate, and those that left it
    for them; expert ids, ascending order not promised.
    """

    layer: int
    expert_ids: np.ndarray
    evicted: np.ndarray


class RoutingPolicy(Protocol):
    """inserted: what the last `select` put into a later layer's cache, for the copy engine to follow, else None.
    logical: the cache that the choice goes by, None where there is none.
    """

    name: str
    exact: bool  # True: the model's own choice, bit for bit
    inserted: Inserted | None
    logical: LogicalCache | None

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        """Called before each forward call, with the arguments of `ExpertProvider.begin`."""
        ...

    def select(self, router: RouterWeights, residual: Array, a: Activations, router_logits: Array) -> Routing:
        """Choose the experts of one layer; arguments as in `ExpertProvider.select`."""
        ...

    def reset(self) -> None:
        """Forget all tokens seen, as at the start of a process."""
        ...
