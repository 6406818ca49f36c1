"""Routing on a GPU: the choice is made there, and both the host, which demands experts by it, and the kernels get it.

What the host was told is remembered with the device arrays that it came from, so that a caller who hands the host's
arrays back is served by those and nothing is uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kernels.backend import NotNumbersError
from kernels.gpu import router, sparse_mixer
from kernels.gpu.device_arrays import DeviceArrays
from kernels.gpu.tiling import Device
from kernels.router_spec import RouterSpec

Answer = tuple[torch.Tensor, torch.Tensor]
"""(topk_ids int32 [T, K], topk_weights float32 [T, K]) on the device."""


@dataclass(slots=True)
class _Told:
    """The newest answer, on the host and on the device."""

    host: tuple[np.ndarray, ...]
    device: Answer

    def of(self, array: np.ndarray) -> torch.Tensor | None:
        """The device form of `array`, if that is one of the host's arrays or a row of it."""
        for here, there in zip(self.host, self.device, strict=True):
            same = array.ctypes.data == here.ctypes.data and array.size == here.size
            if same and array.dtype == here.dtype and array.flags.c_contiguous:
                return there.view(array.shape)
        return None


class RouterOps(DeviceArrays):
    """Part of `kernels.gpu.backend.GpuBackend`."""

    def __init__(self, device: Device | None = None) -> None:
        super().__init__(device)
        self._noted_route: tuple[torch.Tensor, Answer] | None = None
        self._told: _Told | None = None

    def route_on_device(
        self, router_logits: torch.Tensor, spec: RouterSpec, selection_bias: torch.Tensor | None = None
    ) -> Answer:
        """`route` without waiting: both answers stay on the device; ids are -1 for a token with a NaN logit."""
        if spec.gating == "sparsemixer":
            return sparse_mixer.route(router_logits, spec, selection_bias)
        return router.route(router_logits, spec, selection_bias, self.memory)

    def route(
        self, router_logits: torch.Tensor | np.ndarray, spec: RouterSpec,
        selection_bias: torch.Tensor | np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """As `Backend.route`; the arrays are read-only, because the device has them too."""
        router_logits = self.on_device(router_logits)
        selection_bias = None if selection_bias is None else self.on_device(selection_bias)
        if self._noted_route is not None and self._noted_route[0] is router_logits:
            answer = self._noted_route[1]
        else:
            answer = self.route_on_device(router_logits, spec, selection_bias)
        topk_ids, topk_weights = self.fetch(answer)
        broken = np.flatnonzero(topk_ids[:, 0] < 0)
        if broken.size:
            raise NotNumbersError(f"router logits of token {broken[0]} are not numbers")
        topk_ids.flags.writeable = topk_weights.flags.writeable = False
        self._told = _Told((topk_ids, topk_weights), answer)
        return topk_ids, topk_weights

    def routed(self, topk_ids: np.ndarray, topk_weights: np.ndarray) -> Answer | None:
        """The device's form of what `route` answered last, if that is these arrays of one token."""
        told = self._told
        if told is None or topk_ids.shape[0] != 1 or told.host[0] is not topk_ids or told.host[1] is not topk_weights:
            return None
        return told.device

    def note_route(self, router_logits: torch.Tensor, answer: Answer) -> None:
        """`route` of these logits has been launched: `answer` is what `route_on_device` gave, in memory that a replay
        fills anew.
        """
        self._noted_route = (router_logits, answer)

    def on_device(self, array: np.ndarray | torch.Tensor) -> torch.Tensor:
        """A small array there: itself, what `route` gave the host, or an upload."""
        if isinstance(array, torch.Tensor):
            return array
        told = self._told.of(array) if self._told is not None else None
        return self.upload(array) if told is None else told
