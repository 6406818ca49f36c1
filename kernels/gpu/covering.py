"""`CoveringBackend`: a GPU backend whose attention launches also serve later positions, for recording them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernels.backend import KVLayer

if TYPE_CHECKING:
    from kernels.gpu.backend import GpuBackend


class CoveringBackend:
    """`backend` in everything but `attention`, which covers cache positions up to `length`."""

    def __init__(self, backend: GpuBackend, length: int) -> None:
        self._backend = backend
        self._length = length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def attention(
        self, q: torch.Tensor, cache: KVLayer, start: int, num_heads: int, scale: float, window: int = 0,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        return self._backend.attention(q, cache, start, num_heads, scale, window, sinks, length=self._length)
