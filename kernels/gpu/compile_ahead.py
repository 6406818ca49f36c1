"""Compile kernels for a GPU that is not there, through the launchers themselves, and read the compiler's report.

Inside `compiled_for` a launch compiles its kernel for the named architecture, with the types, constants and pointer
alignments of the actual call, and does not run it. Registers, spills and local memory come from ptxas and from the
AMD assembler's own tables; shared memory from Triton.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.gpu.tiling import Device

DEVICES = {
    "sm_80": Device("sm_80", 108),  # A100
    "sm_89": Device("sm_89", 142),  # L40S
    "sm_90": Device("sm_90", 132),  # H100
    "sm_100": Device("sm_100", 148),  # B200
    "gfx942": Device("gfx942", 304),  # MI300X
}


_compiled: dict[int, Any] = {}
"""Kernels that this process has compiled here, by id; they are compiled once and have a report once."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one compiled kernel takes. registers: of a thread; spill_bytes and local_bytes: of a thread's own memory
    beyond registers; shared_bytes: of a program.
    """

    kernel: str
    arch: str
    registers: int
    spill_bytes: int
    local_bytes: int
    shared_bytes: int
    num_warps: int


class _AbsentDevice:
    """What `JITFunction` asks of a driver before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> str:
        return str(self._target.arch)  # kernels of different targets are kept apart by this

    def get_current_stream(self, device: str) -> int:
        return 0


def _target(arch: str) -> GPUTarget:
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64)
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def _ptxas_figures(log: str) -> tuple[int, int, int]:
    """(registers, spill bytes, stack bytes) from `ptxas -v`. Raises ValueError for a log without them."""
    found = [re.search(p, log) for p in (r"Used (\d+) registers", r"(\d+) bytes spill stores", r"(\d+) bytes stack")]
    if any(match is None for match in found):
        raise ValueError(f"no resource figures in the report of ptxas: {log[:400]!r}")
    registers, spill, stack = (int(match.group(1)) for match in found if match)
    return registers, spill, stack


def _amd_figures(assembly: str) -> tuple[int, int, int]:
    """(vector registers, spill bytes, private bytes) from the tables at the end of AMD assembly."""

    def figure(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", assembly)
        if match is None:
            raise ValueError(f"no {name} in the assembly")
        return int(match.group(1))

    # Scalar registers spill into lanes of vector registers, which the count of those holds already.
    return figure("vgpr_count"), 4 * figure("vgpr_spill_count"), figure("private_segment_fixed_size")


def _report(kernel: Any, arch: str, log: str) -> Report:
    registers, spill, local = _amd_figures(kernel.asm["amdgcn"]) if arch.startswith("gfx") else _ptxas_figures(log)
    meta = kernel.metadata
    return Report(meta.name, arch, registers, spill, local, meta.shared, meta.num_warps)


@contextlib.contextmanager
def compiled_for(arch: str) -> Iterator[list[Report]]:
    """While open, launches compile for `arch` and append a report each, kernels that this process
    compiled before excepted.

    Raises RuntimeError under the interpreter, which compiles nothing. Mutates triton's process-wide driver and knobs,
    and puts them back.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are interpreted and not compiled")
    reports: list[Report] = []
    real_run, real_driver = JITFunction.run, driver._active

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        with contextlib.redirect_stdout(io.StringIO()) as log:
            kernel = real_run(self, *args, grid=grid, warmup=True, **kwargs)
        if id(kernel) not in _compiled:
            _compiled[id(kernel)] = kernel
            reports.append(_report(kernel, arch, log.getvalue()))
        return kernel

    with triton.knobs.compilation.scope(), triton.knobs.nvidia.scope():
        triton.knobs.compilation.always_compile = True  # a kernel out of the cache has no report
        triton.knobs.nvidia.dump_ptxas_log = True
        driver.set_active(_AbsentDevice(_target(arch)))
        JITFunction.run = compile_only
        try:
            yield reports
        finally:
            JITFunction.run = real_run
            driver._active = real_driver
