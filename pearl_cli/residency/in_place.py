"""Slots over experts that are in memory already: they count, and hold nothing.

Every rule of residency stays in force, but a load moves no byte: an expert is computed where its file lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pearl_cli.residency.arena import Slots
from pearl_cli.residency.placement import Place


class InPlaceSlots(Slots):
    """`address_of(file_index, offset)` is where a byte of a file is in memory."""

    def __init__(self, classes: Sequence[tuple[int, int]], address_of: Callable[[int, int], int]) -> None:
        super().__init__([(0, count) for _, count in classes], 0, memoryview(b""))
        self._address_of = address_of

    def address(self, slot: int, place: Place) -> int:
        return self._address_of(place.file_index, place.file_offset + place.lead)
