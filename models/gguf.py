"""An open GGUF model: one file or a whole split set, its metadata, where its tensors lie, and positioned reads of
their bytes.

Never maps a file into memory: a file that is cut while open gives an error, not a signal. Where the bytes are is
`models.gguf_files`', what the metadata means is `models.config`'s.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kernels.quant_types import QuantType
from models.errors import ReadFailure, UnsupportedQuantType
from models.gguf_cursor import show
from models.gguf_files import DiskFiles, Files, MemoryFiles, close_all
from models.gguf_header import Header, TensorInfo, open_regular, read_header
from models.gguf_split import check_members, check_unique, member_paths
from models.gguf_values import Kind, StringArray

__all__ = ["GGUFModel", "StringArray", "TensorInfo"]


class GGUFModel:
    """A model file (set) opened for reading; see `open`.

    metadata: values of the first file (int, float, bool, str, numpy arrays, StringArray); kinds: their stored types.
    tensors: by name, over all files, in file order. headers: what each file declares, for those that care about the
    files. paths: where they are, or would be if they were not in `memory` alone.
    """

    def __init__(self, paths: list[Path], files: Files, headers: list[Header]) -> None:
        self.paths = paths
        self.memory = files if isinstance(files, MemoryFiles) else None
        self._files = files
        self.headers = headers
        self.metadata: dict[str, Any] = headers[0].metadata
        self.kinds: dict[str, Kind] = headers[0].kinds
        self.alignment = headers[0].alignment
        self.version = headers[0].version
        self.tensors: dict[str, TensorInfo] = {t.name: t for header in headers for t in header.tensors}

    @classmethod
    def open(cls, path: str | Path) -> GGUFModel:
        """Open a file, or the whole set that it is a member of. Raises FileError, GGUFError or UnsupportedQuantType."""
        path = Path(path)
        fds: list[int] = []
        try:
            fd, file_bytes = open_regular(path)
            fds.append(fd)
            header = read_header(partial(os.pread, fd), file_bytes, path)
            paths = member_paths(path, header)
            if len(paths) == 1:
                return cls(paths, DiskFiles(fds), [header])
            # The member that was asked for is read once more in its place: headers of members are small.
            os.close(fds.pop())
            headers = []
            for index, member in enumerate(paths):
                fd, file_bytes = open_regular(member)
                fds.append(fd)
                headers.append(read_header(partial(os.pread, fd), file_bytes, member, index))
            check_members(paths, headers)
            check_unique(paths, headers)
            return cls(paths, DiskFiles(fds), headers)
        except BaseException:
            close_all(fds)
            raise

    def read(self, tensor: str | TensorInfo) -> np.ndarray:
        """The bytes of one tensor as a fresh uint8 array [n_bytes]. Raises KeyError for an unknown name,
        ReadFailure.
        """
        info = self.tensors[tensor] if isinstance(tensor, str) else tensor
        out = np.empty(info.n_bytes, np.uint8)
        self.read_into(info, out)
        return out

    def read_into(self, info: TensorInfo, out: np.ndarray) -> None:
        """Fill `out` (uint8, contiguous, n_bytes long) with the bytes of one tensor. Raises ReadFailure."""
        if out.size != info.n_bytes:
            raise ValueError(f"out holds {out.size} bytes, tensor {info.name} has {info.n_bytes}")
        self.read_bytes(info.file_index, info.offset, out, f"tensor {show(info.name)}")

    def read_bytes(self, file_index: int, offset: int, out: np.ndarray, what: str) -> None:
        """Fill `out` (uint8, contiguous) from `offset` of one file. `what` is named in errors. Raises ReadFailure."""
        if out.dtype != np.uint8 or not out.flags.c_contiguous or not out.flags.writeable:
            raise ValueError("out must be a writable contiguous uint8 array")
        if self._files.closed:
            raise ValueError("the model was closed")
        view, done = out.data.cast("B"), 0
        while done < out.size:
            try:
                n_bytes = self._files.read(file_index, offset + done, view[done:])
            except OSError as error:
                raise ReadFailure(f"{self.paths[file_index]}: {what} cannot be read: {error.strerror}") from None
            if n_bytes == 0:
                raise ReadFailure(
                    f"{self.paths[file_index]}: {what} needs bytes up to {offset + out.size}, the file now ends at "
                    f"{offset + done}: it was cut while open"
                )
            done += n_bytes

    def resident(self, info: TensorInfo) -> np.ndarray | None:
        """The bytes of one tensor where they lie in host memory, uint8, not to be written; None for a file on a
        disk.
        """
        memory = self.memory
        return None if memory is None else memory.resident(info.file_index, info.offset, info.n_bytes)

    def array(self, name: str) -> np.ndarray:
        """A plain-number tensor (F32, F16, BF16) as fresh float32, in numpy order (dimensions reversed)."""
        info = self.tensors[name]
        shape = tuple(reversed(info.shape))
        raw = self.read(info)
        if info.quant_type == QuantType.F32:
            return raw.view("<f4").reshape(shape)
        if info.quant_type == QuantType.F16:
            return raw.view("<f2").astype(np.float32).reshape(shape)
        if info.quant_type == QuantType.BF16:
            wide: np.ndarray = raw.view("<u2").astype(np.uint32) << np.uint32(16)
            return wide.view(np.float32).reshape(shape)
        where = f"{self.paths[info.file_index]}: tensor {show(name)}"
        raise UnsupportedQuantType(info.quant_type.name, ("F32", "F16", "BF16"), where)

    def close(self) -> None:
        """Close the files; reading afterwards raises ValueError. Harmless when called twice."""
        self._files.close()

    def __enter__(self) -> GGUFModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
