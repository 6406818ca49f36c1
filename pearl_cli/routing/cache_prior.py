"""Cache-Prior on a logical cache: a bonus for experts that the cache holds and for the router's own first choices.

Our implementation of the published description (arXiv 2412.00099), with the cache of prefetch-steered routing in place
of the physical one. selection = scores + lambda * range * [resident or among the top J]; the K best compute, weighed by
the unbiased scores. Choices that the source leaves open: exact in prefill, which only fills cache and range; `range` is
the running one over prompt and decoded tokens; groups of a grouped router are the model's own; with a selection bias or
a sigmoid the bonus is in units of the biased score.
"""

from __future__ import annotations

import numpy as np

from kernels.backend import Activations, Array, Backend
from models.expert_provider import RouterWeights, Routing
from pearl_cli.routing.base import Inserted
from pearl_cli.routing.bonus import exclude_groups, selection_scores, top_k, unbiased_weights
from pearl_cli.routing.logical_cache import LogicalCache
from pearl_cli.routing.route_counts import RouteCounts


class CachePriorRouting:
    """lambda_ 0 is exact routing with the cache simulated beside it. `counts` sums over decoded tokens."""

    def __init__(
        self, backend: Backend, logical: LogicalCache, lambda_: float, top_j: int, name: str = "cache-prior"
    ) -> None:
        self.name = name
        self.exact = lambda_ == 0
        self.inserted: Inserted | None = None
        self.logical: LogicalCache | None = logical
        self.counts = RouteCounts()
        self._backend = backend
        self._cache = logical
        self._lambda = lambda_
        self._top_j = top_j
        self._decoding = False

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        self.inserted = None
        self._decoding = phase == "decode"
        if self._decoding and len(token_ids) != 1:
            raise ValueError(f"{self.name} decodes one token at a time, not {len(token_ids)}")
        self._cache.begin(token_ids, start, phase)

    def select(self, router: RouterWeights, residual: Array, a: Activations, router_logits: Array) -> Routing:
        logits = self._backend.to_host(router_logits)
        if self._decoding:
            routing = self._decode(router, logits)
        else:
            routing = self._exact(router, logits)
            for width in (logits.max(axis=1) - logits.min(axis=1) if _plain(router) else self._widths(router, logits)):
                self._cache.ranges.update(router.layer, float(width))
        x = self._backend.to_host(a.x) if self._cache.needs_inputs else None
        self._cache.use(router.layer, routing.topk_ids, x)
        return routing

    def reset(self) -> None:
        self.inserted = None
        self.counts = RouteCounts()
        self._cache.reset()

    def eligible(self, layer: int) -> np.ndarray:
        """bool [E], fresh: who has the bonus for being there."""
        present: np.ndarray = self._cache.layer(layer).resident.copy()
        return present

    def _bonus(self, layer: int, present: np.ndarray) -> np.ndarray:
        """Share of the bonus [E] that each expert has, 0..1; present: bool [E], who is eligible."""
        return present

    def _exact(self, router: RouterWeights, logits: np.ndarray) -> Routing:
        return Routing(*self._backend.route(logits, router.spec, router.exp_probs_b))

    def _decode(self, router: RouterWeights, logits: np.ndarray) -> Routing:
        spec, layer = router.spec, router.layer
        scores = selection_scores(logits[0], spec, self._bias(router))
        width = self._cache.ranges.update(layer, float(scores.max() - scores.min()))
        scores = exclude_groups(scores, spec, router.exp_probs_b is not None)
        own = top_k(scores, spec.num_experts_per_tok)
        eligible = self.eligible(layer)
        chosen = own
        if self._lambda:
            share = self._bonus(layer, eligible).astype(np.float64)
            share[own[: self._top_j]] = 1.0
            chosen = top_k(scores + self._lambda * width * share, spec.num_experts_per_tok)
        self.counts.note_choice(chosen, own, eligible)
        if np.array_equal(chosen, own):
            return self._exact(router, logits)
        return Routing(*unbiased_weights(self._backend, logits, spec, chosen))

    def _widths(self, router: RouterWeights, logits: np.ndarray) -> list[float]:
        bias = self._bias(router)
        rows = (selection_scores(row, router.spec, bias) for row in logits)
        return [float(row.max() - row.min()) for row in rows]

    def _bias(self, router: RouterWeights) -> np.ndarray | None:
        return None if router.exp_probs_b is None else self._backend.to_host(router.exp_probs_b)


def _plain(router: RouterWeights) -> bool:
    """Whether the selection scores are the logits themselves."""
    return router.exp_probs_b is None and router.spec.gating != "sigmoid"
