"""The process's own stdin, stdout and stderr: there when the caller closed them, UTF-8 whatever the locale; stdout is
named when it fails, and stderr is never a reason to stop.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


def open_closed_streams() -> None:
    """Give a standard stream that the caller closed (`>&-`) the null device.

    Else the next file opened would take its number, Python has None where code writes, and `print` to a closed stderr
    lands on stdout.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def prepare_streams() -> None:
    """Text comes and goes as UTF-8, and names of files as the bytes they are, as with llama.cpp: a locale that lacks a
    character ends no reply. An OSError of stdout carries its name, as one of a file does; what stderr does not take is
    dropped: an answer is whole without its log, as it is for a C program that does not ask what fprintf returned.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.stdout = _over(sys.stdout, _NamedOutput)
    sys.stderr = _over(sys.stderr, _Log)


def drop_what_stdout_refused() -> None:
    """At the end: what could not be written was told, or went to a pipe that nobody reads; Python would try again and
    complain.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _NamedOutput(io.FileIO):
    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None


class _Log(io.FileIO):
    def write(self, data: bytes) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _over(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """An output stream like `stream`, in UTF-8, over a file of `kind`; `stream` itself where it is no plain file, but a
    console of Windows or what a test put there.
    """
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    buffer = stream.buffer
    raw = getattr(buffer, "raw", buffer)
    if type(raw) is not io.FileIO:
        return stream
    file = kind(raw.fileno(), raw.mode, closefd=False)
    inner = file if buffer is raw else io.BufferedWriter(file)
    errors = "surrogateescape" if stream.errors == "strict" else stream.errors
    return io.TextIOWrapper(inner, "utf-8", errors, "\n", stream.line_buffering, stream.write_through)
