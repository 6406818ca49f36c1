"""Files that a command writes: there under their name only when they are whole. A write that fails, on a full disk most
often, is told with the flag and the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from models.errors import WriteFailure


@contextmanager
def result_file(path: Path, flag: str = "") -> Iterator[Path]:
    """Where to write what becomes `path` (the file behind a link) at the end, and is removed after any error. An
    OSError inside becomes a WriteFailure that begins with `flag`.
    """
    target = Path(os.path.realpath(path))
    partial = target.with_name(f"{target.name}.partial")
    try:
        yield partial
        partial.replace(target)
    except OSError as error:
        raise WriteFailure(f"{flag} {path}: {error.strerror or error}".lstrip()) from error
    finally:
        with suppress(OSError):
            partial.unlink()
