"""Matrices of GGUF blocks times activations on a GPU: by rows for few tokens, by tiles for many."""

from __future__ import annotations

import torch

from kernels.backend import Activations, Weight
from kernels.gpu import linear
from kernels.gpu.device_arrays import DeviceArrays
from kernels.gpu.lane_order import LaneOrders
from kernels.gpu.matmul import matmul
from kernels.gpu.tiling import DECODE_TOKENS, Device


class LinearOps(DeviceArrays):
    """Part of `kernels.gpu.backend.GpuBackend`."""

    def __init__(self, device: Device | None = None) -> None:
        super().__init__(device)
        self.orders = LaneOrders(self.device)

    def linear(self, a: Activations, *weights: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        n_tokens, width = a.x.shape
        if any(w.n_cols != width for w in weights):
            raise ValueError(f"weights of {[w.n_cols for w in weights]} columns for activations of width {width}")
        out = self.memory.take((n_tokens, sum(w.n_rows for w in weights)))
        first = 0
        for w in weights:
            stop = first + w.n_rows
            part = None if bias is None else bias[first:stop]
            if n_tokens <= DECODE_TOKENS:
                linear.linear(a.x, w, part, out[:, first:stop], self.device)
            else:
                matmul(self.orders.of(a, w.quant_type), w, part, out[:, first:stop], self.device)
            first = stop
        return out
