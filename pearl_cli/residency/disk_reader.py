"""Positioned reads of whole pages into slots, past the page cache where the file system allows it.

Where direct I/O is refused the reads are buffered and their pages are dropped afterwards, so that the operating
system's cache does not become a hidden tier that no ceiling counts. That fallback is said once, through `notify`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from models.errors import FileError, ReadFailure
from pearl_cli.residency.throttle import Throttle

_DIRECT = getattr(os, "O_DIRECT", 0)


class DiskReader:
    """`read` may be called from several threads at once; `direct[file_index]` says how a file is read."""

    def __init__(
        self,
        paths: Sequence[Path],
        throttle: Throttle | None = None,
        notify: Callable[[str], None] | None = None,
        direct: bool = True,
    ) -> None:
        self._paths = [Path(path) for path in paths]
        self._throttle = throttle
        self._notify = notify
        self.direct: list[bool] = []
        self._fds: list[int] = []
        self._retired: list[int] = []  # another thread may still be reading from a replaced descriptor
        try:
            for path in self._paths:
                self._open(path, direct)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, direct: bool) -> None:
        if direct and _DIRECT:
            try:
                self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC | _DIRECT))
                self.direct.append(True)
                return
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise FileError(f"{path}: {error.strerror}") from error
        try:
            self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise FileError(f"{path}: {error.strerror}") from error
        self.direct.append(False)
        if direct:
            self._say_buffered(path)

    def _say_buffered(self, path: Path) -> None:
        if self._notify is not None:
            self._notify(f"{path}: direct reads are not possible here; reading through the page cache")
            self._notify = None

    def read(self, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        """Fill `out` from `offset`; at least `needed_bytes` of it must exist in the file. Raises ReadFailure."""
        done_at = self._throttle.reserve(len(out)) if self._throttle is not None else 0.0
        self._read_now(file_index, offset, out, needed_bytes)
        if self._throttle is not None:
            self._throttle.wait_until(done_at)

    def _read_now(self, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> None:
        try:
            got = self._fill(file_index, offset, out, needed_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL or not self.direct[file_index]:
                path = self._paths[file_index]
                raise ReadFailure(f"{path}: reading at byte {offset} failed: {error.strerror}") from error
            self._reopen_buffered(file_index)
            got = self._fill(file_index, offset, out, needed_bytes)
        if got < needed_bytes:
            raise ReadFailure(
                f"{self._paths[file_index]}: the file ends at byte {offset + got}, {needed_bytes - got} bytes of an"
                " expert are missing; it was changed or cut short while in use"
            )

    def read_scattered(self, file_index: int, offset: int, outs: Sequence[memoryview], needed_bytes: int) -> None:
        """As `read`, into several pieces of memory that follow each other in the file, by one call."""
        done_at = self._throttle.reserve(sum(map(len, outs))) if self._throttle is not None else 0.0
        try:
            got = os.preadv(self._fds[file_index], outs, offset)
        except OSError:
            got = 0  # `read` says what is wrong, or reads in another way
        for out in outs:
            if got < min(len(out), needed_bytes):  # cut short by a signal, or by the end of the file
                self._read_now(file_index, offset, out, min(len(out), needed_bytes))
            elif not self.direct[file_index]:
                os.posix_fadvise(self._fds[file_index], offset, len(out), os.POSIX_FADV_DONTNEED)
            offset, got, needed_bytes = offset + len(out), got - len(out), needed_bytes - len(out)
        if self._throttle is not None:
            self._throttle.wait_until(done_at)

    def _fill(self, file_index: int, offset: int, out: memoryview, needed_bytes: int) -> int:
        fd = self._fds[file_index]
        got = os.preadv(fd, [out], offset)
        while 0 < got < needed_bytes:  # a signal or a network file system may cut a read short
            more = os.preadv(fd, [out[got:]], offset + got)
            if more <= 0:
                break
            got += more
        if not self.direct[file_index]:
            os.posix_fadvise(fd, offset, len(out), os.POSIX_FADV_DONTNEED)
        return got

    def _reopen_buffered(self, file_index: int) -> None:
        """The file system took the flag at open and refuses the read (seen on some overlay and network mounts)."""
        path = self._paths[file_index]
        self._retired.append(self._fds[file_index])
        self._fds[file_index] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.direct[file_index] = False
        self._say_buffered(path)

    def close(self) -> None:
        for fd in (*self._fds, *self._retired):
            os.close(fd)
        self._fds, self._retired = [], []
