"""`pearl chat` in a pseudo terminal, for tests that type."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CURSOR_WHERE, _CURSOR_IS = "\x1b[6n", b"\x1b[1;1R"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class PtySession:
    """`seen`: what came since the last match of `wait_for`, escape sequences and all."""

    def __init__(self, *args: object, term: str = "dumb", columns: int = 80, **environment: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.environ.update(environment, TERM=term)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.execv(sys.executable, [sys.executable, "-m", "pearl_cli", "chat", *map(str, args)])
        self.seen = ""

    def wait_for(self, pattern: str, seconds: float = 90.0) -> str:
        """Read until `pattern` is in what came since the last match; what came up to its end."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                new = os.read(self.fd, 65536).decode("utf-8", "replace")
                for _ in range(new.count(_CURSOR_WHERE)):  # as a terminal answers
                    os.write(self.fd, _CURSOR_IS)
                self.seen += new
        passed, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return passed

    def send(self, text: str | bytes) -> None:
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def exit_code(self) -> int:
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """End the process, if it is still there."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


def plain(text: str) -> str:
    """Without escape sequences."""
    return _ESCAPES.sub("", text)
