"""Files that flags name: a fault with one begins with its flag, and a place that cannot be written is found out before
the work whose result belongs there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from models.errors import FileError


class NamedPath(click.Path):
    """A path that is named: an empty one, which would mean the current folder, is most often a variable not set."""

    hint = "; write . for the current folder"

    def __init__(self, file_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail(f"the name is empty{self.hint}", param, ctx)
        return super().convert(value, param, ctx)


class NamedFile(NamedPath):
    """The same for what cannot be a folder."""

    hint = ""


def typed_path(name: str) -> Path:
    """The file that `name` means where no shell expands `~`, and `-` or a bare name is a file like others."""
    return Path(os.path.expanduser(name)).absolute()  # the path's own method raises for an unknown user


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


def check_place(flag: str, path: Path | None, others: Iterable[Path | None] = ()) -> None:
    """Raises FileError where no file can be written at `path` (see `result_file`), or none should be: a device would be
    replaced by the file, and `others` are what the command reads or writes too. None is no path.
    """
    if path is None:
        return
    if path.is_dir():
        raise FileError(f"{flag} {path}: this is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        raise FileError(f"{flag} {path}: this is no regular file, which would be replaced; give the name of a file")
    if any(other is not None and other.resolve() == path.resolve() for other in others):
        raise FileError(f"{flag} {path}: another flag names this file too; give another place")
    folder = path.parent
    if not folder.is_dir():
        raise FileError(f"{flag} {path}: the folder {folder} does not exist; make it first, or give another place")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise FileError(f"{flag} {path}: it cannot be written; give another place")
