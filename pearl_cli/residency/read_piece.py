"""A stretch of one expert that one read fetches."""

from __future__ import annotations

from dataclasses import dataclass

from pearl_cli.residency.load import Load
from pearl_cli.residency.placement import Place


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """Linears `mask` of `load`, from `first` to `last`, neighbours in file and slot."""

    load: Load
    first: Place
    last: Place
    mask: int

    @property
    def out(self) -> memoryview:
        """Where they go."""
        return self.load.view[self.first.slot_offset : self.last.slot_offset + self.last.read_bytes]

    @property
    def needed_bytes(self) -> int:
        """What must come at least: a file may end inside the last page."""
        return self.last.slot_offset - self.first.slot_offset + self.last.needed_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of the matrices themselves."""
        return sum(place.n_bytes for i, place in enumerate(self.load.places) if self.mask >> i & 1)
