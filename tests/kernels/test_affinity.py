"""Binding kernel threads to cores: the choice of cores, what the system then says, and that results do not change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu import affinity, parallel

BIND = """
import os, sys, threading
import numpy as np
from kernels.cpu import affinity, parallel
from kernels.cpu.backend import CpuBackend
backend = CpuBackend(2)
x, ones = np.linspace(-1, 1, 12 * 256, dtype=np.float32).reshape(12, 256), np.ones(256, np.float32)
before = backend.norm(x, ones, 1e-5).x.copy()
cores = sorted(os.sched_getaffinity(0))[:2]
affinity.bind([{cores[1]}, {cores[0]}])
assert (backend.norm(x, ones, 1e-5).x == before).all()
masks = {tuple(sorted(os.sched_getaffinity(int(t)))) for t in os.listdir("/proc/self/task")}
assert {(cores[0],), (cores[1],)} <= masks, masks
assert os.sched_getaffinity(0) == {cores[1]}
affinity.bind([cores, cores])
masks = {tuple(sorted(os.sched_getaffinity(int(t)))) for t in os.listdir("/proc/self/task")}
assert (cores[0],) not in masks and tuple(cores) in masks, masks
"""


def test_physical_cores_come_first() -> None:
    pairs = {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5", 6: "6"}
    assert affinity.one_core_each(2, [5, 1, 4, 0], pairs.__getitem__) == [0, 1]
    assert affinity.one_core_each(3, [5, 1, 4, 6], pairs.__getitem__) == [1, 4, 6]
    assert affinity.one_core_each(4, [0, 1, 4, 5], pairs.__getitem__) == [0, 1, 4, 5]
    with pytest.raises(ValueError, match="3 threads, one a core, on 2 cores"):
        affinity.one_core_each(3, [0, 1, 1])


@pytest.mark.skipif(not affinity.available() or parallel.max_threads() < 2, reason="needs Linux, OpenMP and two cores")
def test_each_thread_is_bound_to_its_core() -> None:
    """In a process of its own: the suite's threads stay free."""
    root = Path(affinity.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", BIND], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not affinity.available(), reason="needs Linux and OpenMP")
def test_what_cannot_be_bound_is_refused() -> None:
    threads, before = parallel.num_threads(), os.sched_getaffinity(0)
    with pytest.raises(ValueError, match="threads"):
        affinity.bind([before] * (threads + 1))
    with pytest.raises(OSError, match="4095"):
        affinity.bind([{4095}] * threads)
    assert os.sched_getaffinity(0) == before
