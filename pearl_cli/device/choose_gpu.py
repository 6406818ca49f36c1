"""`--device`: whether to compute on a GPU. Without one, torch is never imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.gpu.tiling import SLOTS
from kernels.quant_types import QuantType
from models.errors import UsageError
from pearl_cli.options import RunOptions

if TYPE_CHECKING:
    from kernels.gpu.open_gpu import OpenGpu

DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))  # CUDA; CUDA under WSL; ROCm
_PACKAGES = ("torch", "triton")


def choose_gpu(
    asked: str, notify: Callable[[str], None] | None = None, quant_types: Collection[QuantType] = ()
) -> OpenGpu | None:
    """asked: "auto", "cpu" or "cuda"; quant_types: of the model. None: compute on the CPU. Raises UsageError when
    "cuda" cannot be had.
    """
    if asked == "cpu" or (asked == "auto" and not _driver_is_here()):
        return None
    fault = _missing_kernels(quant_types) or _missing_packages(_PACKAGES) or _absence()
    if fault is not None and asked == "cuda":
        raise UsageError(f"--device cuda: {fault}; --device cpu computes without one")
    if fault is not None:
        if notify is not None:
            notify(f"there is a GPU driver, but {fault}: computing on the CPU (--device cpu asks for that)")
        return None
    gpu = _open()
    for note in gpu.notes:
        if notify is not None:
            notify(note)
    return gpu


def check_device_flags(options: RunOptions, on_gpu: bool, notify: Callable[[str], None] | None) -> None:
    """Flags that say something about a GPU only: refused where none was wanted, noted where none was found."""
    about_gpus = {"--vram": options.vram is not None, f"--miss {options.miss}": options.miss != "copy"}
    given = [flag for flag, is_set in about_gpus.items() if is_set]
    if on_gpu or not given:
        return
    if options.device == "cpu":
        raise UsageError(f"{given[0]} is about a GPU and --device is cpu; leave one of the two out")
    for flag in given:
        why = "--ram bounds a run on the CPU" if flag == "--vram" else "the CPU computes every expert itself"
        if notify is not None:
            notify(f"{flag} has no effect: no GPU is used here, and {why}")


def _driver_is_here() -> bool:
    return any(path.exists() for path in DRIVER_FILES)


def _missing_kernels(quant_types: Collection[QuantType]) -> str | None:
    missing = sorted(kind.name for kind in quant_types if kind not in SLOTS)
    if not missing:
        return None
    return f"no GPU kernels for {', '.join(missing)}, only for {', '.join(kind.name for kind in SLOTS)}"


def _missing_packages(names: Sequence[str]) -> str | None:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {verb} not installed: pip install 'pearl-moe[gpu]'"


def _absence() -> str | None:
    from kernels.gpu.open_gpu import absence

    return absence()


def _open() -> OpenGpu:
    from kernels.gpu.open_gpu import open_gpu

    return open_gpu()
