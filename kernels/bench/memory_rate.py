"""How fast this machine reads memory with a number of threads: the roof that one-token ops are measured against."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import numpy as np

from kernels.cpu.memory import allocate
from kernels.cpu.native import address_of
from kernels.cpu.vector_ir import I64, Emitter, vec

_VECTORS = 16  # 1 KiB a step of the loop
_STEP_BYTES = 64 * _VECTORS


def _emit_read(e: Emitter, address: Any, n_steps: Any, result: Any) -> None:
    """Xor everything into 64 bytes at `result`, so that no load can be dropped."""
    kind = vec(I64, 8)

    def step(i: Any, sums: list[Any]) -> list[Any]:
        at = e.b.add(address, e.b.mul(i, e.i64(_STEP_BYTES)))
        for k in range(_VECTORS):
            sums[k % 4] = e.b.xor(sums[k % 4], e.load(e.at(at, 64 * k), kind, 64))
        return sums

    first, *others = e.loop(n_steps, [e.zero(kind)] * 4, step)
    for value in others:
        first = e.b.xor(first, value)
    e.store(first, result)


def measure(n_threads: int, n_bytes: int = 512 << 20, repeats: int = 5) -> float:
    """Bytes a second of the fastest of `repeats` reads of n_bytes, each thread reading its own part."""
    read = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address_of("bench_read", 3, _emit_read))
    data = allocate(n_bytes)
    data[::4096] = 1
    part = n_bytes // n_threads // _STEP_BYTES
    results = np.empty((n_threads, 8), np.int64)

    def run(i: int) -> None:
        read(data.ctypes.data + i * part * _STEP_BYTES, part, results[i].ctypes.data)

    best = float("inf")
    for _ in range(repeats):
        threads = [threading.Thread(target=run, args=(i,)) for i in range(n_threads)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - start)
    return n_threads * part * _STEP_BYTES / best
