"""Text files named on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from models.errors import FileError


def read_prompt(path: Path) -> str:
    """Like `read_text`, without the newline that ends the last line: editors add it and nobody means it."""
    return read_text(path).removesuffix("\n").removesuffix("\r")


def read_text(path: Path) -> str:
    """The file's text, `-` for stdin. Raises FileError when it cannot be read or is not UTF-8."""
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 text (byte {error.start})") from error
