"""`WeightSource` hands the non-expert tensors of a file to the architecture that asks for them, each exactly once.

Module attributes carry the tensors' own names, so no name table stands between a file and a model. What nobody asked
for is an error at the end, as is a tensor that is missing or has another shape. Expert tensors stay in the file:
they belong to `models.expert_store`.
"""

from __future__ import annotations

import numpy as np

from kernels.backend import Array, Backend, Weight
from models.config import ModelConfig
from models.errors import GGUFError
from models.expert_store import is_expert_tensor
from models.gguf import GGUFModel, TensorInfo

ALIGNMENT = 64  # bytes: a cache line, and one vector register


def aligned(n_bytes: int) -> int:
    """`n_bytes` rounded up to `ALIGNMENT`."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def allocate(backend: Backend, n_bytes: int) -> np.ndarray:
    """uint8 [n_bytes] beginning on an `ALIGNMENT` border, from the backend's own allocator where it has one."""
    own = getattr(backend, "allocate", None)
    if own is not None:
        return np.asarray(own(n_bytes))
    raw = np.empty(n_bytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + n_bytes]


def resident_tensors(gguf: GGUFModel, config: ModelConfig) -> list[TensorInfo]:
    """The tensors that are loaded with the model: neither routed experts nor of a layer that is not computed."""
    return [t for t in gguf.tensors.values() if not is_expert_tensor(t.name) and not config.is_of_unused_layer(t.name)]


def arena_bytes(gguf: GGUFModel, config: ModelConfig) -> int:
    """Bytes for the tensors of `resident_tensors`; of a file that is in memory itself only vectors are copied."""
    tensors = resident_tensors(gguf, config)
    return sum(
        aligned(info.n_bytes)
        for info in tensors
        if gguf.memory is None or info.n_rows == 1 or info.name.endswith(config.reordered)
    )


def rows_of(weight: Weight, first: int, stop: int) -> Weight:
    """Rows first..stop - 1 of `weight` as a weight of their own, without a copy."""
    return Weight(weight.data[first:stop], weight.quant_type, stop - first, weight.n_cols)


def grouped_rows(n_groups: int, parts: tuple[int, ...]) -> np.ndarray:
    """Where rows lie that a file keeps group by group, each group `parts` after one another: int64, in the order of
    all groups' first parts, then all second ones, ..

    Two groups with parts (1, 2): the file has a0 b0 b0 a1 b1 b1, so [0, 3, 1, 2, 4, 5].
    """
    index = np.arange(n_groups * sum(parts)).reshape(n_groups, -1)
    stops = np.cumsum(parts)
    return np.concatenate([index[:, stop - n : stop].reshape(-1) for n, stop in zip(parts, stops, strict=True)])


class WeightSource:
    """Reads tensors of `gguf` for `backend`; all matrices lie in one arena that is allocated here, or, where the file
    is in host memory already, stay where they are.
    """

    def __init__(self, gguf: GGUFModel, backend: Backend, config: ModelConfig) -> None:
        self.gguf = gguf
        self.backend = backend
        self.where = gguf.paths[0].name
        self._unused = {info.name: info for info in resident_tensors(gguf, config)}
        self._arena = allocate(backend, arena_bytes(gguf, config))
        self._arena_used_bytes = 0

    def has(self, name: str) -> bool:
        """Whether the file holds the tensor `name`."""
        return name in self.gguf.tensors

    def matrix(self, name: str, n_rows: int, n_cols: int, row_order: np.ndarray | None = None) -> Weight:
        """The tensor `name` as it is stored, or with its rows in the order `row_order` int64 [n_rows]; the config names
        such tensors in `reordered`. Raises GGUFError if it is missing, taken already or not [n_rows, n_cols].
        """
        info = self._take(name, (n_cols, n_rows))
        if row_order is None:
            return self.backend.weight(self._read(info), info.quant_type, n_rows, n_cols)
        data = self._read_copy(info)
        rows = data.reshape(n_rows, -1)
        rows[:] = rows[row_order]
        return self.backend.weight(data, info.quant_type, n_rows, n_cols)

    def stack(self, name: str, n_matrices: int, n_rows: int, n_cols: int) -> list[Weight]:
        """The matrices of a tensor [n_cols, n_rows, n_matrices]. Raises GGUFError as `matrix` does."""
        data = self._read(self._take(name, (n_cols, n_rows, n_matrices))).reshape(n_matrices, -1)
        quant_type = self.gguf.tensors[name].quant_type
        return [self.backend.weight(part, quant_type, n_rows, n_cols) for part in data]

    def vector(self, name: str, size: int) -> Array:
        """The tensor `name` as float32 [size] on the backend's device. Raises GGUFError as `matrix` does."""
        return self.backend.from_host(self.host_vector(name, size))

    def table(self, name: str, n_rows: int, n_cols: int) -> Array:
        """The tensor `name` as float32 [n_rows, n_cols] on the backend's device. Raises GGUFError as `matrix` does."""
        return self.backend.from_host(self.host_matrix(name, n_rows, n_cols))

    def host_vector(self, name: str, size: int) -> np.ndarray:
        """The tensor `name` as float32 [size] in host memory. Raises GGUFError as `matrix` does."""
        self._take(name, (size,))
        return np.ascontiguousarray(self.gguf.array(name), np.float32).reshape(size)

    def host_matrix(self, name: str, n_rows: int, n_cols: int) -> np.ndarray:
        """The plain numbers `name` as float32 [n_rows, n_cols] in host memory. Raises GGUFError as `matrix` does."""
        self._take(name, (n_cols, n_rows))
        return np.ascontiguousarray(self.gguf.array(name), np.float32).reshape(n_rows, n_cols)

    def finish(self) -> None:
        """Raises GGUFError naming the tensors that no part of the model asked for."""
        if self._unused:
            names = sorted(self._unused)
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise GGUFError(f"{self.where}: the architecture has no use for {shown}: the file is of another kind")

    def _read(self, info: TensorInfo) -> np.ndarray:
        here = self.gguf.resident(info)
        return here if here is not None else self._read_copy(info)

    def _read_copy(self, info: TensorInfo) -> np.ndarray:
        start = self._arena_used_bytes
        self._arena_used_bytes += aligned(info.n_bytes)
        data = self._arena[start : start + info.n_bytes]
        self.gguf.read_into(info, data)
        return data

    def _take(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self._unused.pop(name, None)
        if info is None:
            fault = "is used twice" if self.has(name) else "is missing"
            raise GGUFError(f"{self.where}: tensor '{name}' {fault}")
        if tuple(size for size in info.shape if size != 1) != tuple(size for size in shape if size != 1):
            raise GGUFError(
                f"{self.where}: tensor '{name}' has shape {list(info.shape)}, the metadata says {list(shape)}"
            )
        return info
