"""The record that lets an interrupted conversion go on: which tensors are safely in the partial files, and their
checksums.

A text file beside the shards. Line 1 names the job (a fingerprint of source, options and layout); each further line is
one finished tensor: "file_index tensor_index crc32". A torn last line, or a fingerprint of another job, counts as not
there. Its claims are checked against the bytes by `shard_writer` before they are believed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO


@dataclass(slots=True)
class Journal:
    path: Path
    fingerprint: str
    done: dict[tuple[int, int], int] = field(default_factory=dict)
    _file: IO[str] | None = None

    @classmethod
    def open(cls, path: Path, fingerprint: str) -> Journal:
        """Read what an earlier run of the same job left at `path`; anything else there is ignored and later
        overwritten.
        """
        journal = cls(path, fingerprint)
        try:
            text = path.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return journal
        lines = text.split("\n")[:-1]  # what follows the last newline is torn or empty
        if lines and lines[0] == fingerprint:
            for line in lines[1:]:
                fields = line.split()
                if len(fields) != 3 or not all(part.isdecimal() for part in fields):
                    break
                journal.done[int(fields[0]), int(fields[1])] = int(fields[2])
        return journal

    def start(self) -> None:
        """Write the record anew from `done` and keep it open for `add`. Raises OSError."""
        self._file = self.path.open("w", encoding="utf-8", newline="\n")
        self._file.write(self.fingerprint + "\n")
        for (file_index, tensor_index), crc in self.done.items():
            self._file.write(f"{file_index} {tensor_index} {crc}\n")
        self._file.flush()

    def add(self, file_index: int, tensor_index: int, crc: int) -> None:
        assert self._file is not None
        self.done[file_index, tensor_index] = crc
        self._file.write(f"{file_index} {tensor_index} {crc}\n")

    def flush(self) -> None:
        """Hand the record to the operating system; call it after the data that it speaks of."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
