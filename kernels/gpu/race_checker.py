"""`RaceChecker`: whether two uses of the same bytes are ordered by streams and events, whatever the timing was.

Each stream, and the host, has a vector clock (Fidge, Mattern 1988): how far it is sure that every stream has come.
A use of bytes is a race when an earlier use of them, one of the two a write, is not in the clock of the later one.
A reader that names a tag also fails when the last write of its bytes was of something else: bytes that were read before
they were copied at all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kernels.gpu.device_calls import Region


class RaceError(RuntimeError):
    """Two uses of the same bytes may happen in either order, or bytes are read that nobody has written."""


Clock = list[int]


@dataclass(frozen=True, slots=True)
class _Use:
    region: Region
    stream: int
    position: int
    name: str

    def overlaps(self, region: Region) -> bool:
        return self.region.begin < region.end and region.begin < self.region.end

    def within(self, region: Region) -> bool:
        return region.begin <= self.region.begin and self.region.end <= region.end


class RaceChecker:
    """Told of every operation in the order in which the host enqueues it."""

    def __init__(self) -> None:
        self._reads: dict[Hashable, list[_Use]] = {}
        self._writes: dict[Hashable, list[_Use]] = {}

    def operation(
        self, name: str, stream: int, clock: Clock, reads: Sequence[Region], writes: Sequence[Region]
    ) -> None:
        """An operation on `stream` at position clock[stream], after everything in `clock`. Raises RaceError."""
        for region in reads:
            self._check_content(name, region)
            self._check(name, clock, region, self._writes)
            self._note(self._reads, _Use(region, stream, clock[stream], name))
        for region in writes:
            self._check(name, clock, region, self._writes)
            self._check(name, clock, region, self._reads)
            self._overwrite(_Use(region, stream, clock[stream], name))

    def host_writes(self, clock: Clock, region: Region) -> None:
        """The host fills `region` now. What it enqueues later comes after, so only earlier uses can clash."""
        self._check("a write of the host", clock, region, self._writes)
        self._check("a write of the host", clock, region, self._reads)
        self._overwrite(_Use(region, 0, 0, "a write of the host"))

    def _check(self, name: str, clock: Clock, region: Region, uses: dict[Hashable, list[_Use]]) -> None:
        for use in uses.get(region.block, ()):
            if use.overlaps(region) and clock[use.stream] < use.position:
                raise RaceError(
                    f"{name} and {use.name} of stream {use.stream} use bytes {region.begin}..{region.end} of"
                    f" {region.block} and nothing orders them"
                )

    def _check_content(self, name: str, region: Region) -> None:
        if region.tag is None:
            return
        uses = [use for use in self._writes.get(region.block, ()) if use.overlaps(region)]
        wrong = [use.region.tag for use in uses if use.region.tag != region.tag]
        covered = sum(min(use.region.end, region.end) - max(use.region.begin, region.begin) for use in uses)
        if wrong or covered < region.end - region.begin:
            raise RaceError(
                f"{name} wants {region.tag} at bytes {region.begin}..{region.end} of {region.block}, where there is"
                f" {wrong[0] if wrong else 'nothing yet'}"
            )

    def _note(self, uses: dict[Hashable, list[_Use]], use: _Use) -> None:
        """A later use by the same stream of the same bytes stands for the earlier one."""
        kept = uses.setdefault(use.region.block, [])
        kept[:] = [old for old in kept if old.stream != use.stream or not old.within(use.region)]
        kept.append(use)

    def _overwrite(self, use: _Use) -> None:
        """Writes never overlap in the record: what is left of an older one is cut out."""
        region = use.region
        self._reads[region.block] = [old for old in self._reads.get(region.block, ()) if not old.within(region)]
        kept: list[_Use] = []
        for old in self._writes.get(region.block, ()):
            kept += _outside(old, region) if old.overlaps(region) else [old]
        self._writes[region.block] = [*kept, use]


def _outside(old: _Use, region: Region) -> list[_Use]:
    """The parts of an older write before and after `region`."""
    spans = [(old.region.begin, region.begin), (region.end, old.region.end)]
    return [
        _Use(Region(region.block, begin, end, old.region.tag), old.stream, old.position, old.name)
        for begin, end in spans
        if begin < end
    ]
