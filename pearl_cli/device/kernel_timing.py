"""Who can say how long kernels took. The CPU's backend can; a GPU runs beside the host, and is asked by a profiler."""

from __future__ import annotations

from typing import Protocol

from kernels.cpu.kernel_clock import Observer


class KernelTiming(Protocol):
    """`kernels.cpu.backend.CpuBackend` is one."""

    def time_kernels(self, on: bool, observer: Observer | None = None) -> None: ...

    @property
    def seconds_in_kernels(self) -> float:
        """Since it was turned on; 0 where nobody measures."""
        ...


class NoKernelTiming:
    """Measures nothing."""

    def time_kernels(self, on: bool, observer: Observer | None = None) -> None:
        """Nothing to turn on."""

    @property
    def seconds_in_kernels(self) -> float:
        return 0.0
