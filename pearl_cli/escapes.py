"""Escapes in texts of the command line: with `-e`, `\\n` is a newline, as llama.cpp reads it unasked.

Without -e a text is taken as it stands, because code holds backslashes of its own; a line on stderr says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from models.errors import UsageError
from pearl_cli.flag_files import file_of
from pearl_cli.text_file import read_prompt

_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_STANDS_FOR = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


def escape_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add -e; the command receives `escape`: True, False, or None where nothing was said."""
    text = r"Read \n, \t, \xHH and their like in -p, -f, -sys and -r as what they stand for.  [default: no-escape]"
    return click.option("-e", "--escape/--no-escape", "escape", default=None, help=text)(command)


def typed_text(name: str, text: str, escape: bool | None) -> str:
    """The text of flag `name` as `escape` says; where nothing was said and it holds a \\n, that is told on stderr."""
    if escape:
        return read_escapes(name, text)
    if escape is None and r"\n" in text:
        click.echo(rf"{name}: \n is taken as it stands; -e makes it a newline, --no-escape keeps it unsaid", err=True)
    return text


def text_or_file(name: str, text: str | None, file_name: str, file: Path | None, escape: bool | None) -> str | None:
    """What `name` TEXT or `file_name` FILE gives, whichever is there; None where neither is."""
    if file is None:
        return None if text is None else typed_text(name, text, escape)
    with file_of(file_name):
        read = read_prompt(file)
    return read_escapes(file_name, read) if escape else read


def read_escapes(name: str, text: str) -> str:
    """`text` with \\n \\r \\t \\' \\" \\\\ and \\xHH, a byte, replaced; any other backslash stays, as in llama.cpp.

    Raises UsageError, naming the flag `name`, where the bytes together are not UTF-8.
    """
    raw = _ESCAPE.sub(_byte, text.encode("utf-8", "surrogateescape"))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: what its escapes stand for is not UTF-8 text (byte {error.start})") from error


def _byte(found: re.Match[bytes]) -> bytes:
    what = found[1]
    if len(what) == 3:
        return bytes([int(what[1:], 16)])
    return _STANDS_FOR.get(what, found[0])
