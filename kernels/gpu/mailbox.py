"""Small device arrays to the host through page-locked memory: several at once, and the host waits for one event.

For router ids and logits, which the host needs before it can go on. It never waits for other streams.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_ALIGNMENT = 64


class Mailbox:
    """Answers are fresh host arrays."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
        """Their values behind all work given to the current stream so far."""
        if self._event is None:
            return [tensor.numpy().copy() for tensor in tensors]
        sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
        if sum(sizes) > self._buffer.numel():
            self._buffer = torch.empty(2 * sum(sizes), dtype=torch.uint8, pin_memory=True)
        parts, begin = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            part = self._buffer[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            part.copy_(tensor, non_blocking=True)
            parts.append(part)
            begin += size
        self._event.record()
        self._event.synchronize()
        return [part.numpy().copy() for part in parts]
