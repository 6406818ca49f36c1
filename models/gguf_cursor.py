"""A bounded forward reader over the head of one file: no lie in a header makes it read or allocate more than the file
can hold.

It fetches the head in growing positioned reads (a small file in one), checks every length and count against the bytes
that are left *before* anything is allocated, and names the item it was reading when something is wrong. It knows the
byte encoding, not its meaning.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

from models.errors import GGUFError

FIRST_READ_BYTES = 1 << 20
# The largest headers in circulation (a vocabulary of 262k, 321k merges, 20k tensors) are below 20 MB.
MAX_HEADER_BYTES = 1 << 27

Read = Callable[[int, int], bytes]
"""(n_bytes, offset) of a file: its bytes there, fewer where it ends."""

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


def show(text: str | bytes, limit: int = 80) -> str:
    """`text` from a file made safe for a one-line message: quoted, escaped, cut."""
    quoted = ascii(text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text)
    return quoted if len(quoted) <= limit else quoted[:limit] + "...'"


class Cursor:
    """Position in the head of a file that `read` reads. `item` is what is being read, for messages; `n_reads` and
    `n_fetched` count the I/O.
    """

    def __init__(self, read: Read, file_bytes: int, where: str) -> None:
        self.where = where
        self.file_bytes = file_bytes
        self.item = "the header"
        self.pos = 0
        self.n_reads = 0
        self._read = read
        self._limit = min(file_bytes, MAX_HEADER_BYTES)
        self.data = b""
        if file_bytes:
            self._fetch(min(FIRST_READ_BYTES, file_bytes))

    @property
    def n_fetched(self) -> int:
        """Bytes read from the file so far."""
        return len(self.data)

    def error(self, message: str) -> GGUFError:
        return GGUFError(f"{self.where}: {message}")

    def need(self, n_bytes: int) -> int:
        """Make `n_bytes` available at the position and step over them; returns where they start in `data`."""
        start = self.pos
        end = start + n_bytes
        if end > len(self.data):
            if end > self._limit:
                raise self._beyond(end)
            self._fetch(min(self._limit, max(end, 2 * len(self.data))))
        self.pos = end
        return start

    def unpack(self, fields: struct.Struct) -> tuple[Any, ...]:
        """The next `fields`. (`need` replaces `data` when it reads on, so it must come before `data` is looked at.)"""
        start = self.need(fields.size)
        return fields.unpack_from(self.data, start)

    def u32(self) -> int:
        return int(self.unpack(U32)[0])

    def u64(self) -> int:
        return int(self.unpack(U64)[0])

    def raw_string(self) -> bytes:
        """A length-prefixed string as bytes."""
        n_bytes = self.u64()
        start = self.need(n_bytes)
        return self.data[start : start + n_bytes]

    def count(self, n_items: int, min_item_bytes: int, noun: str) -> int:
        """`n_items` as declared, refused if that many of at least `min_item_bytes` cannot lie in the rest of the
        head.
        """
        left = self._limit - self.pos
        if n_items * min_item_bytes > left:
            raise self.error(
                f"{self.item} declares {n_items} {noun}, but only {left} bytes are left in the file "
                f"({self.file_bytes} bytes): the file is damaged or cut short; download it again"
            )
        return n_items

    def skip_strings(self, n_items: int) -> array[int]:
        """Step over `n_items` strings; returns the start of each one's bytes relative to the position before, and one
        more: string i is [starts[i], starts[i + 1] - 8). Grows with what was really read, so a false count costs
        nothing.
        """
        base = self.pos
        starts = array("Q")
        append, unpack = starts.append, U64.unpack_from
        data, pos, ready = self.data, self.pos, len(self.data)
        for _ in range(n_items):
            if pos + 8 > ready:
                self.pos = pos
                self.need(8)
                data, ready = self.data, len(self.data)
            start = pos + 8
            append(start - base)
            pos = start + unpack(data, pos)[0]
            if pos > ready:
                self.pos = start
                self.need(pos - start)
                data, ready = self.data, len(self.data)
        append(pos + 8 - base)
        self.pos = pos
        return starts

    def _fetch(self, end: int) -> None:
        missing = end - len(self.data)
        piece = self._read(missing, len(self.data))
        self.n_reads += 1
        if len(piece) != missing:
            raise self.error(
                f"only {len(self.data) + len(piece)} of {end} bytes could be read; is it still being written?"
            )
        self.data = self.data + piece if self.data else piece

    def _beyond(self, end: int) -> GGUFError:
        if end > self.file_bytes:
            return self.error(
                f"the file is cut short or damaged in {self.item}: that needs byte {end}, the file has "
                f"{self.file_bytes} bytes; download it again"
            )
        return self.error(
            f"{self.item} lies beyond the first {MAX_HEADER_BYTES >> 20} MiB; pearl reads headers up to that size"
        )
