"""The model's own routing, untouched: the default."""

from __future__ import annotations

import numpy as np

from kernels.backend import Activations, Array, Backend
from models.expert_provider import RouterWeights, Routing
from pearl_cli.routing.base import Inserted
from pearl_cli.routing.logical_cache import LogicalCache


class ExactRouting:
    name = "exact"
    exact = True
    inserted: Inserted | None = None
    logical: LogicalCache | None = None

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def select(self, router: RouterWeights, residual: Array, a: Activations, router_logits: Array) -> Routing:
        topk_ids, topk_weights = self._backend.route(router_logits, router.spec, router.exp_probs_b)
        return Routing(topk_ids, topk_weights)

    def reset(self) -> None:
        pass
