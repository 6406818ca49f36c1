"""Whether a file holds exactly the tensors its architecture asks for, found out by building the model without its
weights.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from kernels.backend import Backend, Weight
from kernels.quant_types import QuantType, row_bytes
from models.config import ModelConfig
from models.gguf import GGUFModel
from models.registry import build_model
from models.weights import WeightSource


class _NoDevice:
    """What building a model asks of a backend, for arrays that nobody will compute with."""

    def allocate(self, n_bytes: int) -> np.ndarray:
        return np.empty(0, np.uint8)

    def from_host(self, array: np.ndarray) -> np.ndarray:
        return array

    def weight(self, data: np.ndarray, quant_type: QuantType, n_rows: int, n_cols: int) -> Weight:
        return Weight(None, quant_type, n_rows, n_cols)  # what was made from other tensors is let go at once


class _ShapesOnly(WeightSource):
    """A source that checks names and shapes as the real one does, and reads nothing."""

    def matrix(self, name: str, n_rows: int, n_cols: int, row_order: np.ndarray | None = None) -> Weight:
        info = self._take(name, (n_cols, n_rows))
        return _zeros(info.quant_type, n_rows, n_cols)

    def stack(self, name: str, n_matrices: int, n_rows: int, n_cols: int) -> list[Weight]:
        info = self._take(name, (n_cols, n_rows, n_matrices))
        return [_zeros(info.quant_type, n_rows, n_cols)] * n_matrices

    def host_matrix(self, name: str, n_rows: int, n_cols: int) -> np.ndarray:
        self._take(name, (n_cols, n_rows))
        return np.zeros((n_rows, n_cols), np.float32)

    def host_vector(self, name: str, size: int) -> np.ndarray:
        self._take(name, (size,))
        return np.zeros(size, np.float32)


def _zeros(quant_type: QuantType, n_rows: int, n_cols: int) -> Weight:
    """A matrix of zero blocks; the system backs its pages only if someone writes to them."""
    return Weight(np.zeros((n_rows, row_bytes(quant_type, n_cols)), np.uint8), quant_type, n_rows, n_cols)


def check_tensors(gguf: GGUFModel, config: ModelConfig) -> None:
    """Raise what loading would: GGUFError for a tensor that is missing, misshapen or of no use. Experts are not looked
    at.
    """
    source: Any = _ShapesOnly(gguf, cast(Backend, _NoDevice()), config)
    build_model(source, config)
    source.finish()
