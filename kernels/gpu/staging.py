"""Small host arrays to the device without making the host wait: through a ring of page-locked buffers.

For routing ids, offsets and the like; weights have a road of their own. Arrays that come again and again go once.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels.gpu.workspace import Fresh

_SLOTS = 64
_SLOT_BYTES = 16 << 10
_REMEMBERED = 1 << 14  # numbers in one of two halves
_ALIGNMENT = 4  # numbers: 16 bytes


class Staging:
    """Uploads to one device on the stream that is current. `uploads`: how many there were."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.uploads = 0
        self._next = 0
        self._known: dict[tuple[tuple[int, ...], bytes], torch.Tensor] = {}
        self._halves = torch.empty((2, _REMEMBERED), dtype=torch.int32, device=device)
        self._half = self._used = 0
        if device.type == "cpu":
            return
        self._buffers = [torch.empty(_SLOT_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_SLOTS)]
        self._events = [torch.cuda.Event() for _ in range(_SLOTS)]

    def upload(self, array: np.ndarray, memory: Fresh) -> torch.Tensor:
        """`array` in `memory` of the device. The host waits only when _SLOTS uploads are on their way, or for one that
        is larger than a buffer.
        """
        source = _tensor(array)
        out = memory.take(tuple(source.shape), source.dtype)
        self._send(source, out)
        return out

    def once(self, array: np.ndarray) -> torch.Tensor:
        """An int32 `array` on the device, sent when it is first seen; nobody writes to it. For small arrays of few
        values: when there are too many, those that were seen longest ago are sent again, and what a layer's call was
        given stays as it is.
        """
        key = array.shape, array.tobytes()
        found = self._known.get(key)
        if found is None:
            size = -(-array.size // _ALIGNMENT) * _ALIGNMENT
            if size > _REMEMBERED // 16:
                return self.upload(array, Fresh(self.device))
            if self._used + size > _REMEMBERED:
                self._known.clear()
                self._half, self._used = 1 - self._half, 0
            found = self._halves[self._half, self._used : self._used + array.size].view(array.shape)
            self._used += size
            self._send(_tensor(array), found)
            self._known[key] = found
        return found

    def _send(self, source: torch.Tensor, out: torch.Tensor) -> None:
        self.uploads += 1
        if self.device.type == "cpu" or not 0 < source.nbytes <= _SLOT_BYTES:
            out.copy_(source)
            return
        at = self._next
        self._next = (at + 1) % _SLOTS
        self._events[at].synchronize()
        staged = self._buffers[at][: source.nbytes].view(source.dtype).view(source.shape)
        staged.copy_(source)
        out.copy_(staged, non_blocking=True)
        self._events[at].record()


def _tensor(array: np.ndarray) -> torch.Tensor:
    """The same memory where torch can take it; torch has no read-only tensors."""
    fit = array.flags.c_contiguous and array.flags.writeable
    return torch.from_numpy(array if fit else np.array(array, order="C"))
