"""Kernels compile for GPUs that are not here, within limits; and the reading of the compilers' reports is right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.gpu import compile_ahead, compile_matrix
from kernels.gpu.compile_ahead import DEVICES, compiled_for
from kernels.gpu.compile_cases import CASES
from kernels.gpu.compile_matrix import MAX_SHARED_BYTES, everything, faults, markdown, sample
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


def test_what_there_is_to_compile() -> None:
    """Every case on every architecture, and in the sample every op and every architecture."""
    assert set(everything()) == {(arch, i) for arch in DEVICES for i in range(len(CASES))}
    assert sorted(CASES[i].op for _, i in sample()) == sorted({case.op for case in CASES})
    assert {arch for arch, _ in sample()} == set(DEVICES)
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


def compile_for_absent_gpus(*flags: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since Triton interprets in this one."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.gpu.compile_matrix", *flags]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)


def test_every_op_compiles_within_the_limits() -> None:
    """The sample; `.ci/run` compiles every case for every architecture."""
    done = compile_for_absent_gpus("--sample", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["arch"] for row in rows} == set(DEVICES)
    assert len({row["kernel"] for row in rows}) >= 15
    assert all(row["registers"] > 0 for row in rows)
    assert re.fullmatch(
        rf"{len(rows)} kernels compiled for {', '.join(DEVICES)} in \d+ s, 0 over the limits", done.stderr.strip()
    )


def test_what_is_over_a_limit_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for row, code in ((ROW, 0), ({**ROW, "spill_bytes": 4}, 1)):
        monkeypatch.setattr(compile_matrix, "compile_all", lambda works, jobs, row=row: [row])
        assert compile_matrix.main(["--brief"]) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("sm_80 linear Q4_K _linear_kernel: spill_bytes 4\n1 kernels" if code else "1 kernels")


def test_ci_compiles_everything_and_fails_with_it() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "-m kernels.gpu.compile_matrix --brief" in script
