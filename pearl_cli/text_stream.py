"""Token ids to text that may be shown at once: whole characters, and nothing that may turn out to be a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from models.tokenizer import Tokenizer


class TextStream:
    """The text of one reply. Control tokens show nothing; end tokens are the caller's to notice, by id.

    `text` is all that was handed out so far; `stopped` is True once a stop string was found, and nothing follows then.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Iterable[str] = ()) -> None:
        """`stop_strings` end the reply and are not shown. ValueError for an empty one."""
        self._tokenizer = tokenizer
        self._stops = tuple(stop_strings)
        if "" in self._stops:
            raise ValueError("an empty stop string would stop every reply before it begins")
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._shown: list[str] = []
        self.stopped = False

    @property
    def text(self) -> str:
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is now safe to show, often ''."""
        if self.stopped or self._tokenizer.is_control(token_id):
            return ""
        return self._release(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """Return what was held back; call once, when no token follows. An unfinished character becomes U+FFFD."""
        if self.stopped:
            return ""
        tail = self._release(self._decoder.decode(b"", final=True))
        if not self.stopped:
            self._shown.append(self._held)
            tail, self._held = tail + self._held, ""
        return tail

    def _release(self, new: str) -> str:
        """Add `new` to the held text and hand out all of it but a possible beginning of a stop string."""
        text = self._held + new
        found = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            safe = text[: min(found)]
        else:
            n_held = max((_overlap(text, stop) for stop in self._stops), default=0)
            safe, self._held = text[: len(text) - n_held], text[len(text) - n_held :]
        self._shown.append(safe)
        return safe


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
