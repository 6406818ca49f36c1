"""The one region that holds every resident expert: preallocated, page-aligned, cut into slots by size class.

Nothing is allocated after construction. The arena hands out slot numbers; who may overwrite a slot is the controller's
business.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence

import numpy as np

from pearl_cli.residency.placement import PAGE, Place


def map_region(n_bytes: int) -> np.ndarray:
    """Page-aligned zeroed memory, uint8 [n_bytes]; pages become resident when first written."""
    region = np.frombuffer(mmap.mmap(-1, max(n_bytes, PAGE)), np.uint8)
    return region[:n_bytes]


class Slots:
    """Numbers 0..n-1 of the slots of one region; `addresses[slot]` is its first byte, `class_of[slot]` its size class,
    `views[slot]` a writable memoryview of it, empty where the host cannot reach it.
    """

    def __init__(self, classes: Sequence[tuple[int, int]], base: int, whole: memoryview) -> None:
        """classes: (slot_bytes, count) per size class; base: address of the region, `whole` its bytes."""
        self.n_bytes = region_bytes(classes)
        self.views: list[memoryview] = []
        self.addresses: list[int] = []
        self.class_of: list[int] = []
        self._free: list[list[int]] = []
        offset = 0
        for index, (slot_bytes, count) in enumerate(classes):
            first = len(self.views)
            for _ in range(count):
                self.views.append(whole[offset : offset + slot_bytes])
                self.addresses.append(base + offset)
                self.class_of.append(index)
                offset += slot_bytes
            self._free.append(list(range(len(self.views) - 1, first - 1, -1)))

    @property
    def num_slots(self) -> int:
        return len(self.views)

    def num_free(self, size_class: int) -> int:
        return len(self._free[size_class])

    def address(self, slot: int, place: Place) -> int:
        """Where a linear that `place` describes begins, once it has landed in `slot`."""
        return self.addresses[slot] + place.slot_offset + place.lead

    def take(self, size_class: int) -> int:
        """A free slot of the class, or -1."""
        free = self._free[size_class]
        return free.pop() if free else -1

    def release(self, slot: int) -> None:
        self._free[self.class_of[slot]].append(slot)

    def reset_free(self, used: set[int]) -> None:
        """Rebuild the free lists after an interrupted call: every slot that is not in `used` is free."""
        for free in self._free:
            free.clear()
        for slot in range(len(self.views) - 1, -1, -1):
            if slot not in used:
                self._free[self.class_of[slot]].append(slot)


def region_bytes(classes: Sequence[tuple[int, int]]) -> int:
    """Bytes of all slots. Raises ValueError for a slot size that is not a multiple of PAGE."""
    if any(slot_bytes % PAGE for slot_bytes, _ in classes):
        raise ValueError(f"slot sizes must be multiples of {PAGE}: {[size for size, _ in classes]}")
    return sum(slot_bytes * count for slot_bytes, count in classes)


class SlotArena(Slots):
    """Slots in host memory."""

    def __init__(
        self, classes: Sequence[tuple[int, int]], allocate: Callable[[int], np.ndarray] = map_region
    ) -> None:
        """classes: (slot_bytes, count) per size class; slot_bytes a multiple of PAGE. `allocate` gives uint8 memory
        aligned to PAGE.
        """
        self.region = allocate(region_bytes(classes))
        base = self.region.ctypes.data
        if base % PAGE:
            raise ValueError(f"the arena must start on a page of {PAGE} bytes, got address {base:#x}")
        super().__init__(classes, base, memoryview(self.region.data))
