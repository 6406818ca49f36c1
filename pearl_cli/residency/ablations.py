"""Pieces of the copy engine that can be switched off, to measure what each is worth. Results never depend on them."""

from __future__ import annotations

from dataclasses import dataclass

UNCHUNKED_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class CopyPieces:
    """reorder: experts already there are computed while others arrive; preempt: a demand overtakes forecasts at the
    next chunk; chunk: a read ends after one linear, unless its neighbours are small; merge: small experts that follow
    each other in the file are read at once.
    """

    reorder: bool = True
    preempt: bool = True
    chunk: bool = True
    merge: bool = True

    @classmethod
    def without(cls, names: tuple[str, ...]) -> CopyPieces:
        """All but `names`; other names are left to others."""
        return cls("reorder" not in names, "preempt" not in names, "chunk" not in names, "merge" not in names)
