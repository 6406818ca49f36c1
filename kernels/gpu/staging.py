"""Small host arrays to the device without making the host wait: through a ring of page-locked buffers.

For routing ids, offsets and the like; weights have a road of their own.
"""

from __future__ import annotations

import numpy as np
import torch

_SLOTS = 64
_SLOT_BYTES = 16 << 10


class Staging:
    """Uploads to one device on the stream that is current. A device "cpu" gets the array's own memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._next = 0
        if device.type == "cpu":
            return
        self._buffers = [torch.empty(_SLOT_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_SLOTS)]
        self._events = [torch.cuda.Event() for _ in range(_SLOTS)]

    def upload(self, array: np.ndarray) -> torch.Tensor:
        """`array` on the device. The host waits only when _SLOTS uploads are on their way, or for one that is larger
        than a buffer.
        """
        source = torch.from_numpy(np.ascontiguousarray(array))
        if self.device.type == "cpu":
            return source
        if array.nbytes > _SLOT_BYTES or array.nbytes == 0:
            return source.to(self.device)
        at = self._next
        self._next = (at + 1) % _SLOTS
        self._events[at].synchronize()
        staged = self._buffers[at][: array.nbytes].view(source.dtype).view(source.shape)
        staged.copy_(source)
        out = staged.to(self.device, non_blocking=True)
        self._events[at].record()
        return out
