"""Finding special tokens in a text before anything else looks at it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class SpecialSplitter:
    """Cuts a text at every occurrence of some token texts: leftmost first, the longest where several begin together."""

    def __init__(self, tokens: Iterable[tuple[str, int]]) -> None:
        """`tokens`: (text, id) pairs; empty texts are left out."""
        self._ids = {text: token_id for text, token_id in tokens if text}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def split(self, text: str) -> Iterator[str | int]:
        """The pieces in order: token ids, and the non-empty texts between them."""
        start = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if match.start() > start:
                yield text[start : match.start()]
            yield self._ids[match.group()]
            start = match.end()
        if start < len(text):
            yield text[start:]
