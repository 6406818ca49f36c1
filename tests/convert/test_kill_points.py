"""A conversion that is killed at any point leaves nothing that looks finished, and its rerun gives the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.convert.checkpoints import weights, write_folder

N_KILLS = 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_hundred_random_kills(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", weights(), shards=3)
    script = Path(__file__).with_name("kill_points.py")
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, script, folder, tmp_path / "out", str(N_KILLS), "7"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["killed"] >= N_KILLS
    assert found["files"] > 2
    assert found["opened_half_done"] == 0
    assert found["resumes_that_differ"] == 0
