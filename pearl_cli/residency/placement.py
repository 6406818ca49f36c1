"""Where the three matrices of an expert lie in a file and in a slot, so that direct reads land in place.

Direct I/O wants file offset, length and memory address in whole pages. A chunk that starts inside a page is read from
the page's start:
    file   |....page....|....page....|....page....|
    chunk        [=============================]          lead = offset % PAGE
    read   [======================================]       whole pages, to the slot offset of this linear
    table        ^ slot address + slot_offset + lead      no second copy
Linears of a slot follow each other in the order gate, up, down; reads of neighbours merge when the file has them in the
same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kernels.quant_types import QuantType

PAGE = 4096  # covers the logical block size of every common disk; also the alignment of pearl shards


class ChunkLike(Protocol):
    @property
    def file_index(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def quant_type(self) -> QuantType: ...


@dataclass(frozen=True, slots=True)
class Place:
    """One linear: `read_bytes` whole pages from `file_offset` go to `slot_offset`; the matrix starts `lead` bytes
    later.
    """

    file_index: int
    file_offset: int
    read_bytes: int
    slot_offset: int
    lead: int
    n_bytes: int
    quant_type: QuantType

    @property
    def needed_bytes(self) -> int:
        """What a read must deliver at least: a file may end inside the last page."""
        return self.lead + self.n_bytes


def place_expert(chunks: Sequence[ChunkLike]) -> tuple[tuple[Place, ...], int]:
    """Places of gate, up, down and the slot bytes they take."""
    places = []
    slot_offset = 0
    for chunk in chunks:
        lead = chunk.offset % PAGE
        read_bytes = -(-(lead + chunk.n_bytes) // PAGE) * PAGE
        places.append(
            Place(chunk.file_index, chunk.offset - lead, read_bytes, slot_offset, lead, chunk.n_bytes, chunk.quant_type)
        )
        slot_offset += read_bytes
    return tuple(places), slot_offset


def mergeable(first: Place, second: Place) -> bool:
    """True where `second` follows `first` in file and slot, so that one read can fetch both."""
    return first.file_index == second.file_index and second.file_offset == first.file_offset + first.read_bytes
