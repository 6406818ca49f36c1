"""Which queued experts follow each other in a file, so that one read fetches several (see `pearl convert --order`).

Only experts that are one stretch of a file count, and of those only what no reader has begun; the rest of an expert,
and another priority, is read alone.
"""

from __future__ import annotations

from itertools import pairwise

from pearl_cli.residency.load import ALL_LINEARS, Load
from pearl_cli.residency.placement import mergeable

_Position = tuple[int, int]  # file index, byte


class Neighbours:
    """Loads by where they begin and end. Entries of loads that were begun or given up stay until replaced; they are
    never handed out. Changes under the queue's lock.
    """

    def __init__(self) -> None:
        self._from: dict[_Position, Load] = {}
        self._to: dict[_Position, Load] = {}

    def add(self, load: Load) -> None:
        if all(mergeable(one, other) for one, other in pairwise(load.places)):
            self._from[_start(load)] = load
            self._to[_end(load)] = load

    def clear(self) -> None:
        self._from.clear()
        self._to.clear()

    def run_of(self, load: Load, most_bytes: int) -> list[Load]:
        """`load` with what lies before and behind it without a gap, in file order, up to `most_bytes` in all."""
        run, n_bytes = [load], _read_bytes(load)
        if load.waiting != ALL_LINEARS or self._from.get(_start(load)) is not load:
            return run
        for table, step in ((self._from, _end), (self._to, _start)):
            at = load
            while (found := table.get(step(at))) is not None and _fits(found, load):
                n_bytes += _read_bytes(found)
                if n_bytes > most_bytes:
                    return run
                run.insert(0 if table is self._to else len(run), found)
                at = found
        return run


def _fits(found: Load, load: Load) -> bool:
    return found.waiting == ALL_LINEARS and not found.dropped and found.demanded == load.demanded


def _start(load: Load) -> _Position:
    return load.places[0].file_index, load.places[0].file_offset


def _end(load: Load) -> _Position:
    last = load.places[-1]
    return last.file_index, last.file_offset + last.read_bytes


def _read_bytes(load: Load) -> int:
    return sum(place.read_bytes for place in load.places)
