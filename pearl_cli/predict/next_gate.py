"""The router of a later layer, with that layer's norm, on the residual as it stands now: no training, no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernels.backend import Activations, Array, Backend
from models.expert_provider import RouterWeights, Routing
from pearl_cli.predict.base import Forecast
from pearl_cli.predict.rank_calibration import RankCalibration


class NextGate:
    """Forecasts the layer with experts that is `stride` such layers further on; none for the last ones. stride 0 is the
    control: a layer's router on its own input, which must be right always.
    """

    name = "next-gate"

    def __init__(self, routers: Sequence[RouterWeights | None], backend: Backend, stride: int = 1) -> None:
        """routers: per model layer, None for one without experts."""
        self._backend = backend
        with_experts = [router for router in routers if router is not None]
        targets: list[RouterWeights | None] = [*with_experts[stride:], *[None] * stride]
        self._target = {router.layer: target for router, target in zip(with_experts, targets, strict=False)}
        spec = with_experts[0].spec
        self._calibration = RankCalibration(len(routers), spec.num_experts, spec.num_experts_per_tok)

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        pass

    def forecast(self, layer: int, residual: Array, a: Activations, routing: Routing) -> Sequence[Forecast]:
        self._calibration.settle(layer, routing.topk_ids[-1])
        target = self._target[layer]
        if target is None:
            return []
        scores = self._calibration.scores(target.layer, self.logits(target, residual[-1:])[0])
        if target.layer == layer:  # the control: decided already
            self._calibration.settle(layer, routing.topk_ids[-1])
        return [Forecast(target.layer, scores)]

    def logits(self, router: RouterWeights, residual: Array) -> np.ndarray:
        """Selection scores float32 [T, E] (selection bias added) of `router` on residual rows [T, D]."""
        backend = self._backend
        logits = backend.to_host(router.logits(backend, router.normed(backend, residual)))
        if router.exp_probs_b is None:
            return logits
        # A selection bias is added to sigmoid scores (or softmax ones), so ranking needs them too.
        scores = 1.0 / (1.0 + np.exp(-logits)) if router.spec.gating == "sigmoid" else _softmax(logits)
        result: np.ndarray = scores + backend.to_host(router.exp_probs_b)
        return result


def _softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: np.ndarray = e / e.sum(axis=-1, keepdims=True)
    return result
