"""What the op set needs beside kernels: arrays to and from one GPU, and memory for results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton

from kernels.backend import KVLayer, Weight
from kernels.gpu import kv
from kernels.gpu.mailbox import Mailbox
from kernels.gpu.staging import Staging
from kernels.gpu.tiling import INTERPRETER, Device, lanes_of
from kernels.gpu.workspace import Fresh, Workspace
from kernels.quant_types import QuantType, row_bytes


def this_device() -> Device:
    """The current GPU, or the interpreter where kernels run through it. Raises RuntimeError when there is neither."""
    if triton.knobs.runtime.interpret:
        return INTERPRETER
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    found = torch.cuda.get_device_properties()
    arch = getattr(found, "gcnArchName", "").split(":")[0] if torch.version.hip else f"sm_{found.major}{found.minor}"
    return Device(arch, found.multi_processor_count)


class DeviceArrays:
    """Part of `kernels.gpu.backend.GpuBackend`. `device` names what tiles are chosen for, this machine's by default."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = device or this_device()
        self.torch_device = torch.device("cpu" if self.device.interpreted or device is not None else "cuda")
        self.staging = Staging(self.torch_device)
        self.memory: Fresh = Workspace(self.torch_device)
        self._mailbox = Mailbox(self.torch_device)

    def upload(self, array: np.ndarray) -> torch.Tensor:
        """A small host array on the device, in the order of the current stream; the host does not wait. It is there
        until the model is called again.
        """
        return self.staging.upload(array, self.memory)

    def keep(self, array: np.ndarray) -> torch.Tensor:
        """`upload`, for as long as the result is held."""
        return self.staging.upload(array, Fresh(self.torch_device))

    def from_host(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.torch_device)

    def to_host(self, array: torch.Tensor) -> np.ndarray:
        return self._mailbox.fetch([array])[0]

    def fetch(self, arrays: Sequence[torch.Tensor]) -> list[np.ndarray]:
        """`to_host` of several at once: one wait."""
        return self._mailbox.fetch(arrays)

    def new_rows(self, n_rows: int, width: int) -> torch.Tensor:
        return self.memory.take((n_rows, width))

    def weight(
        self, data: np.ndarray | torch.Tensor, quant_type: QuantType, n_rows: int, n_cols: int
    ) -> Weight:
        """Copies host memory to the device; a tensor that lies there is wrapped. Raises ValueError for a size that does
        not match or a type without GPU kernels.
        """
        size = n_rows * row_bytes(quant_type, n_cols)
        lanes_of(quant_type, n_cols)
        if data.dtype not in (np.uint8, torch.uint8) or data.nbytes != size:
            got = f"{data.nbytes} bytes of {data.dtype}"
            raise ValueError(f"{quant_type.name} [{n_rows}, {n_cols}] takes {size} uint8, got {got}")
        held = self.from_host(data) if isinstance(data, np.ndarray) else data
        return Weight(held.reshape(n_rows, -1), quant_type, n_rows, n_cols)

    def kv_layer(
        self, num_kv_heads: int, capacity: int, head_dim: int, value_dim: int, k_dtype: str, v_dtype: str
    ) -> KVLayer:
        rows = ((head_dim, k_dtype), (value_dim, v_dtype))
        k, v = (kv.new_storage(num_kv_heads, capacity, width, dtype, self.torch_device) for width, dtype in rows)
        return KVLayer(k, v, k_dtype, v_dtype)
