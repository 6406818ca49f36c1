"""The script for GPU machines does what it says: tried on the emulated device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.report import failures, markdown

PROGRAM = Path(__file__).with_name("emulated_measure.py")


def findings_of(folder: Path, *args: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run([sys.executable, str(PROGRAM), str(folder), *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "gpu.json").read_text()), (folder / "gpu.md").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    return findings_of(tmp_path_factory.mktemp("gpu"))


def test_all_is_well_and_every_case_ran(whole: tuple[dict[str, Any], str]) -> None:
    findings, text = whole
    assert failures(findings) == []
    assert len(findings["runs"]) == 13
    assert {(run["percent"], run["policy"], run["fetching"]) for run in findings["runs"]} >= {
        (100, "lru", False), (25, "pearl", True), (50, "psr", False)
    }  # fmt: skip
    assert all(run["median_ts"] > 0 and run["host_pinned"] == "yes" for run in findings["runs"])
    assert {check["op"].split()[0] for check in findings["kernels"]} == {
        "linear", "experts", "norm", "head_norm", "embed", "rope,", "router"
    }  # fmt: skip
    assert findings["streaming"][0]["compared"] == 8
    assert "all right" in text
    assert text.count("| tiny |") == 13


def test_policies_differ_where_they_should(whole: tuple[dict[str, Any], str]) -> None:
    runs = {(run["percent"], run["policy"], run["fetching"]): run for run in whole[0]["runs"]}
    assert runs[100, "lru", False]["miss_bytes_per_token"] == 0
    assert runs[25, "lru", False]["miss_bytes_per_token"] > 0
    assert runs[25, "lru", False]["prefetch_bytes_per_token"] == 0
    assert runs[25, "lru", True]["prefetch_bytes_per_token"] > 0
    assert runs[25, "lru", False]["vram_bytes"] < runs[100, "lru", False]["vram_bytes"]


def test_a_wrong_kernel_is_reported_and_time_ends(tmp_path: Path) -> None:
    findings, text = findings_of(tmp_path, "wrong")
    faults = failures(findings)
    assert faults
    assert all(fault.startswith("norm, ") for fault in faults)
    assert f"{len(faults)} wrong" in text
    assert all(run["left_out"] for run in findings["runs"])
    assert "13 more cases were left out" in text


def test_streaming_that_differs_is_reported() -> None:
    row = {"model": "m", "compared": 2, "different": ["25% lru"], "finite": False}
    findings = {
        "device": "d", "versions": {}, "seconds": 1.0, "kernels": [], "streaming": [row], "runs": [],
        "step": {"launches": 3, "device_us": 5.0, "copy_us": 1.0, "slowest": [{"name": "k", "count": 2, "us": 4.0}]},
    }  # fmt: skip
    assert failures(findings) == ["m: 25% lru differs from resident", "m: logits are not finite"]
    text = markdown(findings)
    assert "- m: 25% lru differs from resident" in text
    assert "| k | 2 | 4 |" in text
