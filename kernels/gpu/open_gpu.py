"""Whether there is a GPU to compute on, and what stands in the way; importing this imports torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.backend import Backend
from kernels.gpu.device_calls import DeviceCalls, DeviceMemoryError
from kernels.gpu.toolchain import launch_fault

_FIRST_WITH_TF32 = 80  # compute capability 8.0


@dataclass(frozen=True, slots=True)
class OpenGpu:
    """notes: what a user should know about computing on it; out_of_memory: what is raised when it is full."""

    calls: DeviceCalls
    backend: Backend
    name: str
    notes: tuple[str, ...] = ()
    out_of_memory: tuple[type[Exception], ...] = (DeviceMemoryError, torch.OutOfMemoryError)


def absence() -> str | None:
    """Why torch or triton cannot compute on a GPU here, with what to do about it; None when they can."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this torch ({torch.__version__}) is built without CUDA; install a CUDA build, see pytorch.org"
    if not torch.cuda.is_available():
        return "torch finds no usable GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    return launch_fault()


def open_gpu() -> OpenGpu:
    """The current GPU. Raises RuntimeError when there is none."""
    from kernels.gpu.backend import GpuBackend
    from kernels.gpu.torch_calls import TorchCalls

    calls = TorchCalls()
    notes = []
    major, minor = torch.cuda.get_device_capability()
    if torch.version.hip is None and 10 * major + minor < _FIRST_WITH_TF32:
        notes.append(f"{calls.name} has neither bf16 nor tf32: it computes in float32, prompts slower for it")
    return OpenGpu(calls, GpuBackend(), calls.name, tuple(notes))
