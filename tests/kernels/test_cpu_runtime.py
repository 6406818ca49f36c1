"""What surrounds the CPU kernels: warm-up, code kept between processes, the kernel clock, memory, threads."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from kernels.cpu import memory, parallel, warmup
from kernels.cpu.backend import CpuBackend
from kernels.cpu.compiling_process import CompilingProcess
from kernels.cpu.kernel_clock import ENTRY_POINTS
from kernels.cpu.warmup import compiled_in_this_process
from kernels.quant_types import QuantType

ROOT = Path(__file__).resolve().parents[2]
_QUANTISE = """
import numpy as np
from kernels.cpu.dots import quantize_address
from kernels.cpu.quantize_activations import FORM_Q8_32, quantize
from kernels.cpu.warmup import compiled_in_this_process
quantize(np.ones((1, 32), np.float32), FORM_Q8_32, quantize_address(FORM_Q8_32))
print(compiled_in_this_process())
"""


def compiled_by_a_new_process(cache: Path) -> int:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", _QUANTISE], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_compiled_code_is_kept_between_processes(tmp_path: Path) -> None:
    assert compiled_by_a_new_process(tmp_path) > 0
    assert compiled_by_a_new_process(tmp_path) == 0


def test_warm_up_reports_its_steps_and_leaves_nothing_to_compile() -> None:
    backend, seen = CpuBackend(), []
    backend.warmup({QuantType.Q8_0, QuantType.Q4_K}, lambda what, done, total: seen.append((what, done, total)))
    assert [done for _, done, _ in seen] == list(range(seen[-1][2] + 1))
    assert {"Q8_0 dots", "Q4_K dots", "F32 dots"} <= {what for what, _, _ in seen}
    before = compiled_in_this_process()
    assert backend.warmup({QuantType.Q8_0, QuantType.Q4_K}) is False
    for n_tokens in (1, 9):
        x, scale = np.ones((n_tokens, 512), np.float32), np.ones(512, np.float32)
        w = backend.weight(np.zeros(288 * 20, np.uint8), QuantType.Q4_K, 20, 512)
        backend.linear(backend.norm(x, scale, 1e-5, [w]), w, w)
    assert compiled_in_this_process() == before


class FakeProcess:
    """Stands for CompilingProcess; keeps what it was asked."""

    started: ClassVar[list[list[QuantType]]] = []
    stopped = 0

    def __init__(self, quant_types: list[QuantType]) -> None:
        self.started.append(quant_types)

    def stop(self) -> None:
        FakeProcess.stopped += 1


@pytest.mark.parametrize("anything_compiled", [False, True])
def test_a_second_process_helps_only_where_the_cache_is_empty(
    monkeypatch: pytest.MonkeyPatch, anything_compiled: bool
) -> None:
    if parallel.max_threads() < 2:
        pytest.skip("needs two cores")
    counts = iter([0, int(anything_compiled), int(anything_compiled)])
    monkeypatch.setattr(warmup, "compiled_in_this_process", lambda: next(counts))
    monkeypatch.setattr(warmup, "CompilingProcess", FakeProcess)
    FakeProcess.started.clear()
    FakeProcess.stopped = 0
    assert CpuBackend().warmup({QuantType.Q8_0}) is anything_compiled
    assert FakeProcess.started == [[QuantType.F32, QuantType.Q8_0]] * anything_compiled
    assert FakeProcess.stopped == anything_compiled


def test_the_second_process_does_its_work_and_can_be_ended() -> None:
    warmup.compile_later_steps([0])
    before = compiled_in_this_process()
    warmup.compile_later_steps([0])
    assert compiled_in_this_process() == before
    process = CompilingProcess([QuantType.F32])
    process.stop()
    process.stop()


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_the_clock_knows_kernels_that_exist(module: str) -> None:
    found = importlib.import_module(f"kernels.cpu.{module}")
    assert all(isinstance(getattr(found, name), Dispatcher) for name in ENTRY_POINTS[module])


def test_the_clock_counts_kernels_only_while_it_is_on() -> None:
    backend, x = CpuBackend(), np.ones((1, 64), np.float32)
    w = backend.weight(np.zeros(68, np.uint8), QuantType.Q8_0, 1, 64)
    backend.linear(backend.activations(x), w)
    assert backend.seconds_in_kernels == 0
    backend.time_kernels(True)
    try:
        backend.linear(backend.activations(x), w)
    finally:
        backend.time_kernels(False)
    counted = backend.seconds_in_kernels
    assert counted > 0
    backend.linear(backend.activations(x), w)
    assert backend.seconds_in_kernels == counted


@pytest.mark.parametrize(("n_bytes", "alignment"), [(1, 64), (5000, 4096), (3 << 20, 2 << 20)])
def test_allocated_memory_is_aligned_and_zero(n_bytes: int, alignment: int) -> None:
    array = memory.allocate(n_bytes, alignment)
    assert array.size == n_bytes
    assert array.ctypes.data % alignment == 0
    assert not array.any()
    array[:] = 255


def test_alignments_are_powers_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        memory.allocate(100, 48)


def test_memory_that_is_not_there_is_refused() -> None:
    with pytest.raises(MemoryError, match=f"{1 << 60} bytes"):
        memory.allocate(1 << 60)


def test_threads_are_bounded_by_the_cores_of_this_process() -> None:
    assert parallel.layer_name() in ("omp", "workqueue")
    with pytest.raises(ValueError, match=f"1 to {parallel.max_threads()}"):
        parallel.set_threads(parallel.max_threads() + 1)
