"""ggml's own quantisers by ctypes: the library beside the package `llama_cpp`, or in $LLAMA_CPP_LIB_PATH."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path

import numpy as np

from kernels.quant_types import QuantType, row_bytes

_NAMES = ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll")


class Ggml:
    def __init__(self, library: Path) -> None:
        self._quantize = ctypes.CDLL(str(library)).ggml_quantize_chunk
        self._quantize.restype = ctypes.c_size_t
        numbers = [ctypes.c_int64] * 3  # first weight, rows, columns
        self._quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *numbers, ctypes.c_void_p]

    def quantize(self, x: np.ndarray, quant_type: QuantType, importance: np.ndarray | None = None) -> np.ndarray:
        """`x` float32 [n_rows, n_cols] as uint8 [n_rows, row_bytes]; `importance` float32 [n_cols]."""
        x = np.ascontiguousarray(x, np.float32)
        out = np.zeros((x.shape[0], row_bytes(quant_type, x.shape[1])), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        written = self._quantize(quant_type.value, x.ctypes.data, out.ctypes.data, 0, *x.shape, weights)
        assert written == out.size
        return out


def find_ggml() -> Ggml | None:
    """The library of this machine, None where there is none."""
    folders = [Path(os.environ["LLAMA_CPP_LIB_PATH"])] if "LLAMA_CPP_LIB_PATH" in os.environ else []
    package = importlib.util.find_spec("llama_cpp")
    if package is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "lib")
    found = [folder / name for folder in folders for name in _NAMES if (folder / name).exists()]
    return Ggml(found[0]) if found else None
