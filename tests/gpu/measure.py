"""Check and measure pearl on a CUDA machine in under five minutes; writes gpu.json, gpu.md and step.json (a trace).

    python tests/gpu/measure.py --out FOLDER [--seconds 280] [--models FOLDER]

First every kernel against the reference, each quant type in a process of its own; then recorded decoding against single
launches and streamed against resident decoding, bit for bit; then the shapes of OLMoE and of Qwen3-30B-A3B (a third of
its layers) with random weights at 100, 50 and 25 % residency; the profile of one step. The report is written anew after
each part, and what fails is part of it: a part that raises takes no other with it, and one that hangs ends the run.
Ends with exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

try:
    import torch
    import triton
except ImportError as missing:
    sys.exit(f"measure.py: {missing}; it needs a GPU, torch and triton: pip install '.[gpu]'")

from convert.synth import synthesize
from kernels.gpu.open_gpu import OpenGpu
from models.errors import UsageError
from pearl_cli.device.choose_gpu import choose_gpu
from pearl_cli.options import RunOptions
from pearl_cli.session import demo_model
from tests.gpu.check_processes import check_in_processes
from tests.gpu.gpu_state import bandwidths, state
from tests.gpu.report import failures, write
from tests.gpu.residency_runs import measure_until, recorded_equals_single, streaming_equals_resident, warm_engine
from tests.gpu.step_profile import profile_step

TIMED = (("olmoe-1b-7b", "q4_k", None), ("qwen3-30b-a3b", "q4_k", 16))  # name, type, layers
RECORDED = (("deepseek-v2-lite", "q8_0", 2), ("gpt-oss-20b", "q8_0", 2), ("lfm2-8b-a1b", "q8_0", 3))
"""Latent attention, rings and recurrent layers; the demo model has none."""
RESERVED_S = 20  # for the profile and the report
CHECKS_S = 120  # that kernels may take to be compiled and checked

Shape = tuple[str, str, int | None]


@dataclass(frozen=True)
class Plan:
    """check: the kernels' records; small: a model whose streaming is compared bit for bit; recorded: models whose
    recordings are, `n_past` tokens into a context; timed: what is timed. Models are made when their turn comes.
    """

    check: Callable[[], list[dict[str, Any]]]
    small: Path
    recorded: list[Callable[[], Path]]
    n_past: int
    timed: Callable[[], list[Path]]
    base: RunOptions
    n_prompt: int
    n_gen: int


@dataclass
class Findings:
    """What is known so far; every part that ends is in the report at once."""

    folder: Path
    say: Callable[[str], None]
    known: dict[str, Any] = field(default_factory=dict)

    def part(self, name: str, work: Callable[[], Any]) -> None:
        """`work` goes on with what it finds in `known`; where it raises, that is a finding."""
        self.say(name)
        begun = time.perf_counter()
        try:
            work()
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            self.known["faults"].append(f"{name}: {type(error).__name__}: {lines[0]}")
            self.say(self.known["faults"][-1])
        self.known["seconds"] += time.perf_counter() - begun
        write(self.known, self.folder)


def run(gpu: OpenGpu, plan: Plan, folder: Path, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it; writes the report and returns the findings."""
    started = time.perf_counter()
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    findings = Findings(folder, say, {
        "device": gpu.name, "versions": versions, "seconds": 0.0, "faults": [], "kernels": [], "streaming": [],
        "runs": [], "states": [state()], "bandwidths": {}, "step": None,
    })  # fmt: skip
    known, over = findings.known, lambda: time.perf_counter() - started > seconds - RESERVED_S

    def timed() -> None:
        for record in measure_until(plan.timed(), plan.base, plan.n_prompt, plan.n_gen, over):
            say(f"{record['model']} {record['percent']}% {record['policy']}: {record.get('median_ts') or 'no figure'}")
            known["runs"].append(record)
            known["states"].append(state())
            write(known, folder)

    def profiled() -> None:
        with warm_engine(plan.timed()[0], plan.base) as opened:
            known["step"] = profile_step(opened, folder / "step.json")

    few = min(plan.n_prompt, 20), min(plan.n_gen, 8)
    findings.part("kernels", lambda: known["kernels"].extend(plan.check()))
    findings.part("bandwidths", lambda: known["bandwidths"].update(bandwidths()))
    for make in plan.recorded:
        findings.part(
            "recorded against single launches",
            lambda make=make: known["streaming"].append(
                recorded_equals_single(make(), plan.base, plan.n_past, 2 * few[1])
            ),
        )
    findings.part(
        "streamed against resident",
        lambda: known["streaming"].append(streaming_equals_resident(plan.small, plan.base, *few)),
    )
    findings.part("speeds", timed)
    findings.part("profile", profiled)
    return known


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--models", type=Path, help="folder that keeps the random models for another run")
    options = parser.parse_args(argv)
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    try:
        gpu = choose_gpu("cuda", say)
    except UsageError as error:
        say(str(error))
        return error.exit_code
    assert gpu is not None
    faulthandler.dump_traceback_later(options.seconds + RESERVED_S, exit=True)  # something hangs: say where
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as maker:
        folder = options.models or Path(scratch)
        made = {shape: maker.submit(_make, shape, folder) for shape in (*RECORDED, *TIMED)}  # beside the first checks
        plan = Plan(
            check=lambda: check_in_processes(min(11, os.cpu_count() or 1), min(CHECKS_S, options.seconds / 2)),
            small=demo_model(),
            recorded=[demo_model, *(made[shape].result for shape in RECORDED)],
            n_past=505,  # beyond the ring of a window, and over a doubling of what a recording covers
            timed=lambda: [made[shape].result() for shape in TIMED],
            base=RunOptions(device="cuda", ctx_size=1024, no_profile=True, seed=1),
            n_prompt=512,
            n_gen=64,
        )
        faults = failures(run(gpu, plan, options.out, options.seconds, say))
    faulthandler.cancel_dump_traceback_later()
    for fault in faults:
        say(fault)
    print(options.out / "gpu.md")
    return 1 if faults else 0


def _make(shape: Shape, folder: Path) -> Path:
    name, quant, layers = shape
    kept = sorted((folder / name).glob("*.gguf"))
    return kept[0] if kept else synthesize(name, folder / name, quant, num_layers=layers)


if __name__ == "__main__":
    sys.exit(main())
