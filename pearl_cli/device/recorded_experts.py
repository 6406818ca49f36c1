"""`RecordedExperts`: the experts of a decoded token as one recorded launch, in a layer that holds all of them.

Kernels find them by the router's answer and through the slot table, both in device memory, so the launches are the same
whatever was chosen. A layer that lacks experts computes in groups as they come, which cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kernels.backend import Activations, Array, ExpertTable
from kernels.gpu.device_calls import DeviceCalls, Graph, Region


@runtime_checkable
class RoutedBackend(Protocol):
    """What is needed of `kernels.gpu.backend.GpuBackend` beyond `Backend`."""

    def routed(self, topk_ids: np.ndarray, topk_weights: np.ndarray) -> Any:
        """The device's form of what `route` answered last, if that is these arrays of one token, else None."""
        ...

    def routed_experts(self, a: Activations, table: ExpertTable, topk_ids: Array, topk_weights: Array) -> Array:
        """`Backend.experts` by arrays on the device."""
        ...

    def recording(self, length: int) -> Any:
        """The backend for launches that are recorded."""
        ...


@dataclass(slots=True)
class _Recording:
    """inputs: rows, ids and weights that it reads, where they lie."""

    inputs: tuple[Array, ...]
    graph: Graph | None = None
    out: Array = None


class RecordedExperts:
    def __init__(self, calls: DeviceCalls, backend: RoutedBackend) -> None:
        self._calls = calls
        self._backend = backend
        self._of_layer: dict[int, _Recording] = {}

    def answer(self, topk_ids: np.ndarray, topk_weights: np.ndarray) -> Any:
        """As `RoutedBackend.routed`."""
        return self._backend.routed(topk_ids, topk_weights)

    def __call__(
        self, layer: int, a: Activations, table: ExpertTable, answer: tuple[Array, Array], reads: Sequence[Region]
    ) -> Array:
        """The weighted sum, float32 [1, D], by `answer` of `RoutedBackend.routed`; recorded when the inputs lie where
        they lay in the layer's last call, which compiled the kernels.
        """
        inputs, made = (a.x, *answer), self._of_layer.get(layer)
        if made is None or any(one is not other for one, other in zip(inputs, made.inputs, strict=True)):
            self._of_layer[layer] = _Recording(inputs)
            return self._calls.run(lambda: self._backend.routed_experts(a, table, *answer), reads, name="experts")
        if made.graph is None:
            made.graph = self._calls.capture(lambda: self._keep(made, a, table, answer))
        made.graph.replay(reads)
        return made.out

    def _keep(self, made: _Recording, a: Activations, table: ExpertTable, answer: tuple[Array, Array]) -> None:
        made.out = self._backend.recording(0).routed_experts(a, table, *answer)
