"""--cpu-mask, --cpu-range, --cpu-strict: what they name, what the process then runs on, and that it is given back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import numba
import pytest

import pearl_cli
from kernels.cpu import parallel
from models.errors import UsageError
from pearl_cli.cpu_core_options import CoreMask, CoreRange
from pearl_cli.cpu_cores import bound_threads, on_cores
from pearl_cli.open_engine import open_engine
from pearl_cli.options import RunOptions
from tests.tiny_gguf import tiny_moe

LINUX = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")


@pytest.mark.parametrize(("text", "cores"), [("0x5", {0, 2}), ("f0", {4, 5, 6, 7}), ("1", {0})])
def test_masks(text: str, cores: set[int]) -> None:
    assert CoreMask().convert(text, None, None) == cores


def test_ranges_and_what_is_none() -> None:
    assert CoreRange().convert("2-4", None, None) == {2, 3, 4}
    masks = ("0x0", "0-3", "1" + "0" * 16384)
    ranges = ("4-2", "3", "0-65536", f"0-{10**12}", "0-" + "9" * 5000)
    for kind, text in [*((CoreMask(), text) for text in masks), *((CoreRange(), text) for text in ranges)]:
        with pytest.raises(click.BadParameter, match=f"'{text}'"):
            kind.convert(text, None, None)


@LINUX
def test_the_process_keeps_to_the_cores_and_gets_its_own_back() -> None:
    before = os.sched_getaffinity(0)
    chosen = frozenset({max(before)})
    with on_cores(RunOptions(cpu_mask=chosen)):
        assert os.sched_getaffinity(0) == chosen
    with on_cores(RunOptions(cpu_range=frozenset(before))), bound_threads(RunOptions(), print):
        assert os.sched_getaffinity(0) == before
    assert os.sched_getaffinity(0) == before
    beyond = max(before) + 1
    options = RunOptions(cpu_mask=chosen | {beyond})
    with pytest.raises(UsageError, match=f"core {beyond} is not there; this process may use "), on_cores(options):
        pass
    options = RunOptions(cpu_range=frozenset(range(beyond, beyond + 98)))
    with pytest.raises(UsageError, match=f"core {beyond} and 97 more are not there") as failed, on_cores(options):
        pass
    assert len(str(failed.value)) < 120
    assert os.sched_getaffinity(0) == before


@LINUX
def test_a_strict_run_says_what_a_free_one_says() -> None:
    """The greedy answer of the embedded model, in processes of their own."""
    answers = []
    for flags in ([], ["--cpu-strict", "1", "-t", "1"], ["-C", hex(1 << min(os.sched_getaffinity(0)))]):
        command = [sys.executable, "-m", "pearl_cli", "chat", "-p", "2 + 3 =", "-st", "-n", "4", "--temp", "0", *flags]
        root = Path(pearl_cli.__file__).parents[1]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    assert answers[0].strip()
    assert answers == [answers[0]] * 3


def test_an_engine_computes_with_as_many_threads_as_asked_for(tmp_path: Path) -> None:
    before = parallel.num_threads()
    try:
        for threads in sorted({1, parallel.max_threads()}):
            path = tiny_moe().write(tmp_path / f"tiny-{threads}.gguf")
            with open_engine(path, RunOptions(threads=threads, ctx_size=32)) as opened:
                opened.engine.prefill([1, 2, 3])
                assert (opened.threads, parallel.num_threads(), numba.get_num_threads()) == (threads,) * 3
    finally:
        parallel.set_threads(before)
