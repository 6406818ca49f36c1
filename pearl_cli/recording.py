"""Record what the routers saw and chose while a model runs: the source of traces and of training data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.backend import Activations, Array, Backend
from models.expert_provider import ExpertProvider, Routing
from pearl_cli.residency.controller import ResidencyController


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """One layer of one forward call: topk_ids int32 [T, K], topk_weights float32 [T, K], router inputs float16 [T, D]
    or None, hit bool [T, K] or None where the call held several tokens or everything was in memory.
    """

    layer: int
    topk_ids: np.ndarray
    topk_weights: np.ndarray
    hidden: np.ndarray | None
    hit: np.ndarray | None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One forward call: token ids int64 [T] from context position `start`, and its layers with experts in order."""

    token_ids: np.ndarray
    start: int
    phase: str
    layers: list[LayerRecord]


class RecordingProvider:
    """An `ExpertProvider` around another, which does the work. `calls` grows until somebody empties it."""

    def __init__(self, inner: ExpertProvider, backend: Backend, keep_hidden: bool) -> None:
        self.calls: list[CallRecord] = []
        self._inner = inner
        self._backend = backend
        self._keep_hidden = keep_hidden
        self._now = CallRecord(np.zeros(0, np.int64), 0, "", [])

    def begin(self, token_ids: np.ndarray, start: int, phase: str) -> None:
        self._now = CallRecord(token_ids, start, phase, [])
        self._inner.begin(token_ids, start, phase)

    def select(self, layer: int, residual: Array, a: Activations, router_logits: Array) -> Routing:
        resident = self._resident(layer) if router_logits.shape[0] == 1 else None
        routing = self._inner.select(layer, residual, a, router_logits)
        hidden = self._backend.to_host(a.x).astype(np.float16) if self._keep_hidden else None
        hit = resident[routing.topk_ids] if resident is not None else None
        self._now.layers.append(
            LayerRecord(layer, routing.topk_ids.copy(), routing.topk_weights.copy(), hidden, hit)
        )
        return routing

    def compute(self, layer: int, a: Activations, routing: Routing) -> Array:
        return self._inner.compute(layer, a, routing)

    def end(self) -> None:
        self._inner.end()
        self.calls.append(self._now)

    def _resident(self, layer: int) -> np.ndarray | None:
        if not isinstance(self._inner, ResidencyController):
            return None
        state = self._inner.layers[layer]
        return state.cache.resident.copy() if state is not None else None
