"""Host memory that copies to the device start from: page-locked as it lies, or pageable behind a page-locked ring.

A copy from pageable memory makes the host wait and runs at a third of the speed, so where the system refuses to lock
all of it, pieces go through a small ring that it does lock. Experts are computed on the device either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import numpy as np

from kernels.gpu.device_calls import DeviceCalls, Region
from kernels.gpu.timeline import Timeline
from pearl_cli.memory_plan import MIB
from pearl_cli.residency.arena import map_region

RING_BYTES = (64 * MIB, 16 * MIB, 4 * MIB, MIB)  # the first that can be locked
LOCK_SHARE = 0.85  # of the memory that is free for this process: the system must go on living

Send = Callable[[np.ndarray, int, Region], None]
"""(source, offset within the view, region of the source): start one copy."""


def lock(calls: DeviceCalls, region: np.ndarray, limit_bytes: int) -> str | None:
    """Page-lock `region` where it lies, unless it is larger than `limit_bytes`; None when it is done, else what
    page-locking it does instead.
    """
    if region.nbytes > limit_bytes:
        return "would leave the system too little"
    return None if calls.pin(region) else "is refused (ulimit -l)"


class PinnedRing:
    """Page-locked bytes that copies pass through, in order."""

    def __init__(self, calls: DeviceCalls, copies: Timeline, region: np.ndarray) -> None:
        self._calls = calls
        self._copies = copies
        self._region = region
        self._head = 0
        self._busy: deque[tuple[int, int, int]] = deque()  # begin, end, mark of the copy that reads it; oldest first

    def send(self, view: np.ndarray, tag: Hashable, copy: Send) -> None:
        """Bring uint8 `view` on its way; the host has read all of it when this returns."""
        half = self._region.nbytes // 2  # so that one piece is filled while another is copied
        for offset in range(0, view.nbytes, half):
            piece = view[offset : offset + half]
            begin = self._room(piece.nbytes)
            source = Region("ring", begin, begin + piece.nbytes, (tag, offset))
            self._calls.host_writes(source)
            out = self._region[begin : begin + piece.nbytes]
            out[:] = piece
            copy(out, offset, source)
            self._busy.append((begin, begin + piece.nbytes, self._copies.mark()))

    def _room(self, n_bytes: int) -> int:
        """Where the next piece goes; waits for copies that still read there."""
        begin = self._head if self._head + n_bytes <= self._region.nbytes else 0
        end = begin + n_bytes
        while any(first < end and begin < last for first, last, _ in self._busy):
            self._copies.synchronize(self._busy.popleft()[2])
        self._head = end
        return begin


class HostStore:
    """`pinned`: "yes", "ring" or "no"."""

    def __init__(
        self,
        calls: DeviceCalls,
        copies: Timeline,
        region: np.ndarray,
        lock_limit_bytes: int,
        notify: Callable[[str], None] | None = None,
        is_locked: bool = False,
    ) -> None:
        """region: all of the host memory, page-aligned; lock_limit_bytes: how much may be page-locked; is_locked: by
        `lock`, before. `close` unlocks it either way.
        """
        self._calls = calls
        self._region = region
        self._ring: PinnedRing | None = None
        why = None if is_locked else lock(calls, region, lock_limit_bytes)
        self.pinned = "yes" if why is None else "no"
        self._locked: np.ndarray | None = region if self.pinned == "yes" else None
        if self.pinned == "yes":
            return
        for n_bytes in RING_BYTES:
            ring = map_region(n_bytes)
            if calls.pin(ring):
                self._ring, self.pinned, self._locked = PinnedRing(calls, copies, ring), "ring", ring
                break
        if notify is not None:
            through = f"a page-locked ring of {n_bytes // MIB}MiB" if self._ring else "pageable memory"
            size = -(-region.nbytes // MIB)
            notify(f"page-locking {size}MiB of host memory {why}: copies go through {through}, which is slower")

    def send(self, begin: int, end: int, tag: Hashable, copy: Send) -> None:
        """Start copies of bytes begin..end-1 of the region. With a ring the bytes may change as soon as this returns,
        else only when the copies are over.
        """
        view = self._region[begin:end]
        if self._ring is not None:
            self._ring.send(view, tag, copy)
        else:
            copy(view, 0, Region("host", begin, end, tag))

    @property
    def source_is_read_at_once(self) -> bool:
        return self._ring is not None

    def close(self) -> None:
        """Unlock. Only after the last copy."""
        if self._locked is not None:
            self._calls.unpin(self._locked)
            self._locked = None
