"""Have the system begin to write a file's data while more of it is being made, so that syncing at the end finds little
left to do.

A hint only: what is safe on the disk is decided by fsync. Nothing happens where the system call is missing.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

_STRETCH_BYTES = 32 << 20
_BEGIN_WRITING = 2  # SYNC_FILE_RANGE_WRITE


class WriteBehind:
    """For one open file that is written mostly in order."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun = 0

    def written_to(self, end: int) -> None:
        """All up to byte `end` has been handed to the system."""
        if end - self._begun >= _STRETCH_BYTES:
            begin = _sync_file_range()
            if begin is not None:
                begin(self._descriptor, self._begun, end - self._begun, _BEGIN_WRITING)
            self._begun = end


@cache
def _sync_file_range() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function
