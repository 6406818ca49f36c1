"""How long the compiled kernels take, in all and call by call. Off by default, and then free.

While on, the entry points below are replaced in their modules by ones that add up wall time around each call. Only
Python code calls them; compiled code holds its own references, so nothing is recompiled.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

# module of kernels.cpu -> its compiled functions that Python calls
ENTRY_POINTS: dict[str, tuple[str, ...]] = {
    "attention": ("_attend", "_merge"),
    "conv": ("_one", "_many"),
    "delta_rule": ("_heads",),
    "dequant_path": ("_float_rows",),
    "expert_token": ("experts_of_token",),
    "experts": ("gate_up_rows", "down_rows", "_combine", "join_rows"),
    "gated_units": ("join_rows",),
    "gates": ("_gate_one", "_gate_rows", "_norm_one", "_norm_rows"),
    "linear": ("_linear",),
    "matmul": ("_matmul",),
    "matmul_experts": ("_gate_up", "_down"),
    "norm": ("_norm_one", "_norm_parallel"),
    "norm_forms": ("_one", "_parallel"),
    "quantize_activations": ("_quantize_serial", "_quantize_parallel"),
    "rope": ("_one_token", "_tokens"),
    "router": ("_route",),
    "selective_scan": ("_heads", "heads_by_chunks"),
}


Observer = Callable[[str, float, float], None]
"""(kernel, begin, end) in seconds of time.perf_counter."""


class KernelClock:
    """`seconds`: wall time inside kernels since `start`. `observer`, where set, is told of each call."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.observer: Observer | None = None
        self._originals: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        """Begin at 0. Calling it twice restarts the count."""
        self.stop()
        self.seconds = 0.0
        for name, functions in ENTRY_POINTS.items():
            module = importlib.import_module(f"kernels.cpu.{name}")
            for function in functions:
                kernel = getattr(module, function)
                self._originals.append((module, function, kernel))
                setattr(module, function, self._timed(f"{name}.{function.strip('_')}", kernel))

    def stop(self) -> None:
        """Put the plain kernels back; `seconds` stays."""
        for module, function, kernel in self._originals:
            setattr(module, function, kernel)
        self._originals.clear()

    def _timed(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = kernel(*arguments)
            end = time.perf_counter()
            self.seconds += end - begin
            if self.observer is not None:
                self.observer(name, begin, end)
            return result

        return call
