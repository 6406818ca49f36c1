"""The script for GPU machines does what it says: tried on the emulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.gpu.tiling import SLOTS
from kernels.reference.backend import ReferenceBackend
from kernels.router_spec import RouterSpec
from pearl_cli.options import RunOptions
from pearl_cli.sizes import Size
from tests.gpu import kernel_checks
from tests.gpu.check_processes import check_in_processes
from tests.gpu.gpu_state import held_back
from tests.gpu.kernel_checks import Check
from tests.gpu.report import as_record, failures, markdown
from tests.gpu.residency_runs import Case, cases, measure_until

NOTHING: dict[str, Any] = {
    "device": "d", "versions": {}, "seconds": 1.0, "faults": [], "kernels": [], "streaming": [], "runs": [],
    "states": [], "bandwidths": {}, "step": None,
}  # fmt: skip
PROGRAM = Path(__file__).with_name("emulated_measure.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """(findings, report) of one run."""
    folder = tmp_path_factory.mktemp("gpu")
    done = subprocess.run([sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "step.json").stat().st_size > 0
    return json.loads((folder / "gpu.json").read_text()), (folder / "gpu.md").read_text()


def test_every_part_ran_and_what_failed_took_nothing_with_it(whole: tuple[dict[str, Any], str]) -> None:
    """A model that cannot be made, and one that cannot be opened, are planted."""
    findings, text = whole
    n_cases = sum(case.percent != 50 for case in cases())
    wrong = failures(findings)
    assert wrong[0] == "recorded against single launches: OSError: no room for a model"
    assert len(wrong) == 1 + n_cases
    assert all("none.gguf" in fault for fault in wrong[1:])
    runs = [run for run in findings["runs"] if "fault" not in run]
    ran = {(run["percent"], run["policy"], run["fetching"]) for run in runs}
    assert ran == {(case.percent, case.policy, case.fetching) for case in cases() if case.percent != 50}
    assert all(run["median_ts"] > 0 and run["host_pinned"] == "yes" for run in runs)
    assert {check["op"].split()[0].strip(",") for check in findings["kernels"]} == {
        "linear", "experts", "norm", "layer_norm", "head_norm", "gated_norm", "embed", "rope", "router",
        "sigmoid_gate", "causal_conv", "delta_rule", "selective_scan",
    }  # fmt: skip
    assert any(check["op"].endswith("down and sum") for check in findings["kernels"])
    compared = [(row["from"], row["compared"]) for row in findings["streaming"]]
    assert compared == [("single launches", 1), ("resident", 4)]
    assert f"{1 + n_cases} wrong" in text
    assert text.count("| tiny |") == n_cases
    assert findings["step"] is not None


def test_which_cases_there_are() -> None:
    made = [(case.percent, case.policy, case.fetching) for case in cases()]
    assert len(set(made)) == len(made) == 1 + 2 * 3 * 2
    assert {percent for percent, _, _ in made} == {100, 50, 25}
    assert {(policy, fetching) for percent, policy, fetching in made if percent < 100} == {
        (policy, fetching) for policy in ("lru", "pearl", "psr") for fetching in (False, True)
    }


def test_what_a_case_asks_for() -> None:
    def options(policy: str, fetching: bool) -> tuple[Any, ...]:
        made = Case(25, policy, fetching).options(RunOptions())
        return made.budget, made.evict, made.predictor, made.routing, made.inserts

    quarter = Size(percent=25)
    assert options("lru", False) == (quarter, "lru", "none", "exact", None)
    assert options("lru", True) == (quarter, "lru", "next-gate", "exact", None)
    assert options("pearl", False) == (quarter, "pearl", "auto", "exact", None)
    assert options("pearl", True) == (quarter, "pearl", "next-gate", "exact", None)
    assert options("psr", False) == (quarter, "lru", "none", "psr", 0)
    assert options("psr", True) == (quarter, "lru", "none", "psr", 1)


def test_residency_shows_in_the_figures(whole: tuple[dict[str, Any], str]) -> None:
    good = [run for run in whole[0]["runs"] if "fault" not in run]
    runs = {(run["percent"], run["policy"], run["fetching"]): run for run in good}
    assert runs[100, "lru", False]["miss_bytes_per_token"] == 0
    assert runs[25, "lru", False]["miss_bytes_per_token"] > 0
    assert runs[25, "lru", False]["vram_bytes"] < runs[100, "lru", False]["vram_bytes"]


def test_kernels_are_compared_with_the_reference() -> None:
    """The reference itself passes where it can stand in for the device; what is off by a little does not."""
    reference = ReferenceBackend()
    spec = RouterSpec(64, 6)
    assert kernel_checks._router(reference, spec, False).ok
    assert all(check.ok for check in kernel_checks._rows(reference, 5, 64))
    assert all(check.ok for check in kernel_checks._hybrid(reference, 5, 1, 2, 8))
    assert all(check.ok for check in kernel_checks._mamba(reference, 5, 1, 2, 8, 4))
    reference.norm = lambda x, weight, eps: ReferenceBackend().norm(x, weight, eps + 0.1)
    checks = {check.op: check for check in kernel_checks._rows(reference, 5, 64)}
    assert not checks["norm"].ok
    assert checks["embed"].ok
    reference.delta_rule = lambda qkv, beta, *rest: ReferenceBackend().delta_rule(qkv, beta + 0.1, *rest)
    checks = {check.op: check.ok for check in kernel_checks._hybrid(reference, 5, 1, 2, 8)}
    assert [op for op, ok in checks.items() if not ok] == ["delta_rule", "delta_rule, state"]
    reference.route = lambda logits, spec, bias: ReferenceBackend().route(-logits, spec, bias)
    assert not kernel_checks._router(reference, spec, False).ok


def test_a_check_that_raises_is_one_that_fails() -> None:
    class Broken(ReferenceBackend):
        def head_norm(self, *arguments: Any) -> Any:
            raise ArithmeticError("no registers\nmore")

    checks = list(kernel_checks.other_checks(Broken(), False))
    wrong = [check for check in checks if not check.ok]
    assert {(check.op, check.fault) for check in wrong} == {("norms, embed", "ArithmeticError: no registers")}
    assert {check.op for check in checks} >= {"delta_rule", "router sigmoid", "layer_norm"}


GROUP = """
import json, os, sys, time
print(json.dumps({"op": sys.argv[1], "n_tokens": 1, "error": 0.0, "limit": 1.0, "fault": "", "ok": True}), flush=True)
if sys.argv[1] == "dies":
    print("an illegal address", file=sys.stderr, flush=True)
    os.abort()
if sys.argv[1] == "hangs":
    time.sleep(600)
"""


def test_a_process_that_dies_or_hangs_says_what_it_had() -> None:
    """And takes no other with it."""
    records = check_in_processes(3, 3.0, (sys.executable, "-c", GROUP), ("dies", "hangs", "lives"))
    said = [(record["op"], record["ok"], record["fault"]) for record in records]
    assert said == [
        ("dies", True, ""),
        ("dies", False, "its process ended with -6: an illegal address"),
        ("hangs", True, ""),
        ("hangs", False, "not done in 3 s"),
        ("lives", True, ""),
    ]
    assert kernel_checks.groups() == [*(kind.name for kind in SLOTS), kernel_checks.OTHERS]


def test_a_group_without_a_gpu_is_a_failed_check() -> None:
    (record,) = check_in_processes(1, 120.0, names=("F32",))
    assert not record["ok"]
    assert record["fault"].startswith("its process ended with 1: ")


def test_what_held_the_clocks_back() -> None:
    assert held_back([{}, {"clocks_throttle_reasons.active": "0x0000000000000001"}]) == []
    states = [{"clocks_throttle_reasons.active": value} for value in ("0x4", "0x20", "[N/A]")]
    assert held_back(states) == ["power cap", "heat"]


def test_when_the_time_is_up_cases_are_left_out_and_listed() -> None:
    left = list(measure_until([Path("a"), Path("b")], RunOptions(), 4, 4, lambda: True))
    assert len(left) == 2 * len(cases())
    assert all(record["left_out"] for record in left)
    findings = {**NOTHING, "versions": {"torch": "2"}, "runs": left}
    assert "26 more cases were left out" in markdown(findings)


def test_what_is_wrong_is_reported() -> None:
    wrong = as_record(Check("norm", 5, 0.1, 1e-5))
    row = {"model": "m", "from": "resident", "compared": 2, "different": ["25% lru"], "finite": False}
    failed = {"model": "n", "percent": 50, "policy": "psr", "fetching": True, "fault": "OSError: full"}
    step = {"launches": 3, "device_us": 5.0, "copy_us": 1.0, "slowest": [{"name": "k", "count": 2, "us": 4.0}]}
    findings = {
        **NOTHING, "kernels": [wrong, as_record(Check("rope", 1, 0.0, 1.0, "ValueError: no"))], "streaming": [row],
        "runs": [failed], "step": step, "bandwidths": {"link_gb_s": 55.0},
        "states": [{"clocks.sm": "1980 MHz", "clocks_throttle_reasons.active": "0x40"}],
    }  # fmt: skip
    assert failures(findings) == [
        "norm, 5 tokens: error 1.00e-01, allowed 1e-05", "rope, 1 tokens: ValueError: no",
        "m: 25% lru differs from resident", "m: logits are not finite", "n 50% psr: OSError: full",
    ]  # fmt: skip
    text = markdown(findings)
    assert "5 wrong" in text
    for line in ("link_gb_s: 55 GB/s", "clocks.sm 1980 MHz", "clocks were held back: heat (hardware)"):
        assert line in text
    assert "- m: 25% lru differs from resident" in text
    assert "| k | 2 | 4 |" in text


def test_without_a_gpu_it_says_so_before_anything_is_made(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM.with_name("measure.py")), "--out", str(tmp_path / "out")],
        capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert "--device cuda: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
