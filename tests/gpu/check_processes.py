"""Run groups of kernel checks in processes side by side; what one says before it ends is kept, however it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.gpu.kernel_checks import Check, groups
from tests.gpu.report import as_record

PROGRAM = (sys.executable, str(Path(__file__).with_name("check_group.py")))


def check_in_processes(
    workers: int, seconds: float, program: Sequence[str] = PROGRAM, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Records of all checks, group by group. A group whose process fails, or takes more than `seconds`, has one more
    that says so.
    """
    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda name: _one(program, name, seconds), groups() if names is None else names)
        return [record for records in found for record in records]


def _one(program: Sequence[str], group: str, seconds: float) -> list[dict[str, Any]]:
    fault = ""
    try:
        done = subprocess.run([*program, group], capture_output=True, text=True, timeout=seconds)
        out = done.stdout
        if done.returncode:
            said = done.stderr.strip().splitlines() or [""]
            fault = f"its process ended with {done.returncode}: {said[-1][:200]}"
    except subprocess.TimeoutExpired as error:
        out = error.stdout if isinstance(error.stdout, str) else (error.stdout or b"").decode()
        fault = f"not done in {seconds:.0f} s"
    lines = [line for line in out.splitlines() if line.endswith("}")]
    records: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    if fault:
        records.append(as_record(Check(group, 0, float("inf"), 0.0, fault)))
    return records
