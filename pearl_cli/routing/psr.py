"""Prefetch-steered routing: Cache-Prior on a logical cache that the next layer's router may stock ahead of its gate.

Our implementation of the published description (arXiv 2610.34721), no reproduction. After each choice of a decoded
token the router of the next layer with experts, behind that layer's own norm, scores the residual as it stands now; of
its best `top_m` experts the first `inserts` that the next layer's cache does not hold are put there, and have the bonus
when its gate opens. Their copies run meanwhile and affect speed only. The residual is the one that the current layer's
norm reads, so that copies overlap that layer's experts; the other choices that the source leaves open are `Steering`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from kernels.backend import Activations, Array, Backend
from models.expert_provider import RouterWeights, Routing
from pearl_cli.routing.base import Inserted
from pearl_cli.routing.bonus import exclude_groups, selection_scores, top_k
from pearl_cli.routing.cache_prior import CachePriorRouting
from pearl_cli.routing.logical_cache import LogicalCache
from pearl_cli.routing.steering import DEFAULTS, NEXT_NORM, Steering


class PrefetchSteeredRouting(CachePriorRouting):
    def __init__(
        self,
        backend: Backend,
        logical: LogicalCache,
        routers: Sequence[RouterWeights | None],
        lambda_: float,
        top_j: int,
        inserts: int,
        steering: Steering = DEFAULTS,
        name: str = "psr",
    ) -> None:
        """routers: per model layer, None for one without experts; inserts: at most so many a layer and token;
        steering: for top_m, norm and bonus.
        """
        super().__init__(backend, logical, lambda_, top_j, name)
        self._inserts = inserts
        self._steering = steering
        with_experts = [router for router in routers if router is not None]
        self._next = {a.layer: b for a, b in itertools.pairwise(with_experts)}

    def select(self, router: RouterWeights, residual: Array, a: Activations, router_logits: Array) -> Routing:
        routing = super().select(router, residual, a, router_logits)
        target = self._next.get(router.layer)
        self.inserted = None
        if self._decoding and self._inserts and target is not None:
            self.inserted = self._stock(target, residual, a)
        return routing

    def _stock(self, target: RouterWeights, residual: Array, a: Activations) -> Inserted | None:
        if self._steering.norm == NEXT_NORM:
            a = target.normed(self._backend, residual)
        new, evicted = self._cache.insert(target.layer, self._likely(target, a), self._inserts)
        if not new.size:
            return None
        self.counts.inserts += new.size
        return Inserted(target.layer, new, evicted)

    def _bonus(self, layer: int, present: np.ndarray) -> np.ndarray:
        if self._steering.bonus == 1.0:
            return present
        share: np.ndarray = np.where(self._cache.ahead[layer], self._steering.bonus, 1.0) * present
        return share

    def _likely(self, target: RouterWeights, a: Activations) -> np.ndarray:
        """The best experts of a later layer's router on the normed residual of now, best first."""
        backend, spec = self._backend, target.spec
        logits = backend.to_host(target.logits(backend, a))[0]
        scores = selection_scores(logits, spec, self._bias(target))
        scores = exclude_groups(scores, spec, target.exp_probs_b is not None)
        return top_k(scores, self._steering.top_m or spec.num_experts_per_tok)
