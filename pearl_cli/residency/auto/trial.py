"""Fetching ahead held against the clock: on and off in turn, block by block, so that both see the text and the machine
change."""

from __future__ import annotations

import statistics

_BLOCK = 8  # decoded tokens; the first is not counted: what it finds was done under the other
_LEAST_PAIRS = 4
_MOST_PAIRS = 16
_CERTAIN = 2.0  # standard errors


class FetchTrial:
    """on: whether to fetch in the next token. lending_ms: what the slots that stay lent cost a token meanwhile, which
    is no fault of not fetching.
    """

    def __init__(self, lending_ms: float) -> None:
        self.on = True
        self.with_ms: list[float] = []  # of each block
        self.without_ms: list[float] = []
        self._lending_ms = lending_ms
        self._block: list[float] = []

    def add(self, token_ms: float) -> None:
        """One decoded token took so long."""
        self._block.append(token_ms)
        if len(self._block) < _BLOCK:
            return
        counted = sorted(self._block[1:])[:-1]  # the slowest is the machine's
        mean = statistics.fmean(counted)
        if self.on:
            self.with_ms.append(mean)
        else:
            self.without_ms.append(mean - self._lending_ms)
        self._block.clear()
        self.on = not self.on

    def outcome(self) -> bool | None:
        """True: it pays, False: it does not, None: more is to be seen."""
        gains = [without - fetched for without, fetched in zip(self.without_ms, self.with_ms, strict=False)]
        if len(gains) < _LEAST_PAIRS:
            return None
        gain, error = statistics.fmean(gains), statistics.stdev(gains) / len(gains) ** 0.5
        if gain <= 0.0:
            return False
        if gain > _CERTAIN * error:
            return True
        return None if len(gains) < _MOST_PAIRS else gain > error

    def means_ms(self) -> tuple[float, float]:
        """A token without and with fetching."""
        return statistics.fmean(self.without_ms), statistics.fmean(self.with_ms)
