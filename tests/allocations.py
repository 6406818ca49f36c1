"""Which buffers numpy asks the allocator for, one by one, also those that are given back at once.

numpy keeps freed buffers below 1 KiB in a cache of its own; those are seen too. What compiled code allocates for
itself is not numpy's: `numba.core.runtime.rtsys` counts that.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SET_HANDLER, _GET_HANDLER = 304, 305
"""Places of PyDataMem_SetHandler and PyDataMem_GetHandler in numpy's table of C functions, the same since 1.22."""

_Malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_Calloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_Realloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_ROOT = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Buffer:
    """n_bytes, asked for at `place`: the innermost lines of this project, innermost first."""

    n_bytes: int
    place: str


class _Handler(ctypes.Structure):
    """PyDataMem_Handler, version 1."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", _Malloc),
        ("calloc", _Calloc),
        ("realloc", _Realloc),
        ("free", ctypes.c_void_p),
    )


def _pointer(capsule: Any, name: bytes | None) -> int:
    function = ctypes.pythonapi.PyCapsule_GetPointer
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(function(capsule, name))


class _Recorder:
    """numpy's own handler with a note of each request. Memory is freed by numpy's own function, so that arrays may
    live longer than anything here.
    """

    def __init__(self) -> None:
        self.seen: list[Buffer] | None = None
        core = importlib.import_module("numpy._core._multiarray_umath")
        table = ctypes.cast(_pointer(core._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
        get = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER])
        self._set = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
        self._default = ctypes.cast(_pointer(get(), b"mem_handler"), ctypes.POINTER(_Handler)).contents
        own = self._default
        self._handler = _Handler(
            b"recorder", 1, own.context,
            _Malloc(lambda at, n: self._note(n) or own.malloc(at, n)),
            _Calloc(lambda at, n, size: self._note(n * size) or own.calloc(at, n, size)),
            _Realloc(lambda at, old, n: self._note(n) or own.realloc(at, old, n)),
            own.free,
        )  # fmt: skip
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._handler))  # arrays keep its address
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._capsule = new(ctypes.addressof(self._handler), b"mem_handler", None)

    def _note(self, n_bytes: int) -> None:
        if self.seen is not None:
            self.seen.append(Buffer(n_bytes, _place()))

    @contextmanager
    def recording(self) -> Iterator[list[Buffer]]:
        seen: list[Buffer] = []
        before, self.seen = self._set(self._capsule), seen
        try:
            yield seen
        finally:
            self._set(before)
            self.seen = None


def _place() -> str:
    frame, lines = sys._getframe(2), list[str]()
    while frame is not None and len(lines) < 3:
        name = frame.f_code.co_filename
        if name.startswith(_ROOT) and name != __file__:
            lines.append(f"{name[len(_ROOT) + 1 :]}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(lines)


_recorders: list[_Recorder] = []


@contextmanager
def numpy_buffers() -> Iterator[list[Buffer]]:
    """The buffers that numpy arrays of this thread ask for meanwhile, in order."""
    if not _recorders:
        _recorders.append(_Recorder())
    with _recorders[0].recording() as seen:
        yield seen
