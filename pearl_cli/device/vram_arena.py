"""Expert slots in the memory of the device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kernels.gpu.device_calls import DeviceCalls, Region
from pearl_cli.residency.arena import Slots, region_bytes
from pearl_cli.residency.placement import PAGE, Place


class VramArena(Slots):
    """`memory` holds the slots one after the other; the host sees addresses and no bytes."""

    def __init__(self, classes: Sequence[tuple[int, int]], calls: DeviceCalls) -> None:
        """classes as for `Slots`. Raises DeviceMemoryError."""
        self.memory = calls.device_memory(max(region_bytes(classes), PAGE))
        super().__init__(classes, self.memory.address, memoryview(b""))

    def offset(self, slot: int, place: Place) -> int:
        """Where in `memory` the matrix of `place` begins."""
        return self.address(slot, place) - self.memory.address

    def region(self, slot: int, place: Place, tag: Hashable) -> Region:
        """The bytes of the matrix, for race checking."""
        begin = place.slot_offset + place.lead
        return Region(("slot", slot), begin, begin + place.n_bytes, tag)
