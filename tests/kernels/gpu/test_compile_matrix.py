"""Kernels compile for GPUs that are not here, within limits; and the reading of the compilers' reports is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.gpu import compile_ahead
from kernels.gpu.compile_ahead import DEVICES, compiled_for
from kernels.gpu.compile_cases import CASES
from kernels.gpu.compile_matrix import MAX_SHARED_BYTES, covering, everything, faults, markdown
from kernels.gpu.tiling import SLOTS

ROOT = Path(__file__).resolve().parents[3]

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_linear_kernel' for 'sm_90a'
ptxas info    : Function properties for _linear_kernel
    56 bytes stack frame, 60 bytes spill stores, 64 bytes spill loads
ptxas info    : Used 254 registers, used 1 barriers, 56 bytes cumulative stack size
"""
AMDGCN = """    .private_segment_fixed_size: 24
    .sgpr_spill_count: 3
    .vgpr_count:     208
    .vgpr_spill_count: 5
"""
ROW: dict[str, object] = {
    "op": "linear", "variant": "Q4_K", "kernel": "_linear_kernel", "arch": "sm_80", "registers": 128, "spill_bytes": 0,
    "local_bytes": 0, "shared_bytes": 4096, "num_warps": 4,
}  # fmt: skip


def test_reports_are_read() -> None:
    assert compile_ahead._ptxas_figures(PTXAS) == (254, 60, 56)
    assert compile_ahead._amd_figures(AMDGCN) == (208, 20, 24)
    with pytest.raises(ValueError, match="no resource figures"):
        compile_ahead._ptxas_figures("")
    with pytest.raises(ValueError, match="vgpr_spill_count"):
        compile_ahead._amd_figures(".vgpr_count: 3")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, []),
        ({"spill_bytes": 4}, ["spill_bytes 4"]),
        ({"local_bytes": 8}, ["local_bytes 8"]),
        ({"registers": 129}, ["registers 129 over 128"]),
        ({"registers": 255, "kernel": "_matmul_kernel"}, []),
        ({"registers": 256, "kernel": "_matmul_kernel"}, ["registers 256 over 255"]),
        ({"shared_bytes": (99 << 10) + 1, "arch": "sm_89"}, ["shared_bytes 101377 over 101376"]),
    ],
)
def test_what_is_over_a_limit_is_found(change: dict[str, object], found: list[str]) -> None:
    assert faults({**ROW, **change}) == found


def test_the_covering_subset_covers() -> None:
    works = covering()
    assert {i for _, i in works} == set(range(len(CASES)))
    assert {(arch, CASES[i].op) for arch, i in works} == {(a, c.op) for a in DEVICES for c in CASES}
    assert len(works) < len(everything()) / 3
    typed = {case.op for case in CASES if case.variant in {t.name for t in SLOTS}}
    assert len(typed) == 7  # linear and experts for 1, 8 and many tokens, and the embedding
    for op in typed:
        assert {t.name for t in SLOTS} <= {case.variant for case in CASES if case.op == op}
    assert set(MAX_SHARED_BYTES) == set(DEVICES)


def test_the_interpreter_compiles_nothing_and_says_so() -> None:
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"), compiled_for("sm_90"):
        pass


def test_the_table_has_the_largest_figures_of_each_kernel() -> None:
    table = markdown([ROW, {**ROW, "variant": "Q8_0", "registers": 40, "shared_bytes": 9}])
    assert table.splitlines()[-1] == "| linear_kernel | linear | 128 / 0 / 4096 | - | - | - | - |"


def test_every_kernel_compiles_within_the_limits() -> None:
    """In a process of its own, since Triton interprets in this one."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    jobs = str(min(len(os.sched_getaffinity(0)), 8))
    command = [sys.executable, "-m", "kernels.gpu.compile_matrix", "--cover", "--json", "--jobs", jobs]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["arch"] for row in rows} == set(DEVICES)
    assert len({row["kernel"] for row in rows}) >= 15
    assert all(row["registers"] > 0 for row in rows)
