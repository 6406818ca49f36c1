"""A full disk under stdout is told by name and is a failure; under stderr it costs no answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("pearl ", f"{sys.executable} -m pearl_cli ", 1)
    return subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)


@needs_full
@pytest.mark.parametrize(
    "line", ["pearl --help", "pearl plan -m {m}", "pearl complete -m {m} -p abc -n 4 -s 1", "pearl info {m} --json"]
)
def test_a_full_disk_under_stdout_is_named(line: str, tiny_path: Path) -> None:
    done = shell(f"{line.format(m=tiny_path)} > /dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "pearl: standard output: No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("log", [pytest.param("2>/dev/full", marks=needs_full), "2>&-", "2> >(true)"])
def test_a_log_that_takes_nothing_costs_no_answer(log: str, tiny_path: Path) -> None:
    call = f"pearl complete -m {tiny_path} -p abc -n 6 --temp 0 --ignore-eos --verbose"
    whole, done = shell(call), shell(f"{call} {log}")
    assert (done.returncode, done.stdout) == (0, whole.stdout)
    assert whole.stdout
    assert done.stderr == ""


@needs_full
def test_a_fault_keeps_its_exit_code_without_a_log() -> None:
    assert shell("pearl complete -p x --no-such-flag 2>/dev/full").returncode == 2
    assert shell("pearl complete -m missing.gguf -p x 2>/dev/full").returncode == 2


def test_unbuffered_streams_are_told_apart_too(tiny_path: Path) -> None:
    done = shell(f"PYTHONUNBUFFERED=1 pearl plan -m {tiny_path} --json")
    assert done.returncode == 0
    assert '"total_bytes"' in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_text_is_utf8_whatever_the_locale(encoding: str, tiny_path: Path, tmp_path: Path) -> None:
    (tmp_path / "say.txt").write_text("h\u00e9\u2192\u4f60\n", encoding="utf-8")
    for call in (
        f"pearl complete -m {tiny_path} -p abc -n 8 --temp 0 --ignore-eos",
        f"pearl chat -m {tiny_path} -n 8 --temp 0 < {tmp_path}/say.txt",
        f"pearl tokenize -m {tiny_path} < {tmp_path}/say.txt",
    ):
        usual, other = (shell(f"PYTHONIOENCODING={each} {call}") for each in ("utf-8", encoding))
        assert other.returncode == 0, other.stderr
        assert other.stdout == usual.stdout
        assert usual.stdout


def test_a_name_of_bytes_is_printed_as_it_is(tiny_path: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m pearl_cli convert {tiny_path} -o {tmp_path}/$'\\xff'"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(os.fsdecode(done.stdout.splitlines()[-1])).is_file()
