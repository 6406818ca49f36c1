"""Files that flags name: a fault with one begins with its flag, and a place that cannot be written is found out before
the work whose result belongs there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.errors import FileError


@contextmanager
def file_of(flag: str) -> Iterator[None]:
    """A FileError inside, or an OSError about a named file, becomes a FileError that begins with `flag`."""
    try:
        yield
    except FileError as error:
        raise type(error)(f"{flag} {error}") from error
    except OSError as error:
        if error.filename is None:
            raise
        raise FileError(f"{flag} {error.filename}: {error.strerror}") from error


def check_place(flag: str, path: Path | None) -> None:
    """Raises FileError where no file can be written at `path`; None is no path."""
    if path is None:
        return
    if path.is_dir():
        raise FileError(f"{flag} {path}: this is a folder; give the name of a file")
    folder = path.parent
    if not folder.is_dir():
        raise FileError(f"{flag} {path}: the folder {folder} does not exist; make it first, or give another place")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise FileError(f"{flag} {path}: it cannot be written; give another place")
