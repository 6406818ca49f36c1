"""One conversion at a time writes one output: a second one is told so instead of tearing the first one's files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.errors import ConversionError

LOCK_SUFFIX = ".lock.partial"


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold the lock file `path` while the block runs and remove it at the end. The system frees it with the process, so
    one left behind by a killed run holds nobody up. Raises ConversionError when another process holds it, OSError.
    """
    descriptor = _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before may have removed the file between the two calls; then nobody else sees this lock.
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            output = path.name.removesuffix(LOCK_SUFFIX)
            raise ConversionError(
                f"{path.parent}: another conversion is writing {output} here; wait for it, or give another -o"
            ) from None
        os.close(descriptor)
