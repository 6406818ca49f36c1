"""Check and measure pearl on a CUDA machine in under five minutes; writes gpu.json, gpu.md and step.json (a trace).

    python tests/gpu/measure.py --out FOLDER [--seconds 280] [--models FOLDER]

Every kernel against the reference; streamed against resident decoding, bit for bit; the shapes of OLMoE and of
Qwen3-30B-A3B (a third of its layers) with random weights at 100, 50 and 25 % residency; the profile of one step.
Ends with exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import triton

from convert.synth import synthesize
from kernels.gpu.open_gpu import OpenGpu
from models.errors import UsageError
from pearl_cli.device.choose_gpu import choose_gpu
from pearl_cli.options import RunOptions
from pearl_cli.session import demo_model
from tests.gpu.kernel_checks import all_checks
from tests.gpu.report import as_record, failures, write
from tests.gpu.residency_runs import measure_until, streaming_equals_resident, warm_engine
from tests.gpu.step_profile import profile_step

SHAPES = (("olmoe-1b-7b", "q4_k", None), ("qwen3-30b-a3b", "q4_k", 16))  # name, type, layers
RESERVED_S = 20  # for the profile and the report


@dataclass(frozen=True)
class Plan:
    """large: shapes of real models in the kernel checks; workers: processes that compile for them; small: a model whose
    streaming is compared bit for bit; models: what is timed.
    """

    large: bool
    workers: int
    small: Path
    models: list[Path]
    base: RunOptions
    n_prompt: int
    n_gen: int


def run(gpu: OpenGpu, plan: Plan, folder: Path, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """All of it; writes the report and returns the findings."""
    started = time.perf_counter()
    say(f"{gpu.name}: kernels")
    kernels = [as_record(check) for check in all_checks(gpu.backend, plan.large, plan.workers)]
    say("streamed against resident")
    streaming = [streaming_equals_resident(plan.small, plan.base, min(plan.n_prompt, 20), min(plan.n_gen, 8))]
    runs = []
    over = lambda: time.perf_counter() - started > seconds - RESERVED_S  # noqa: E731
    for record in measure_until(plan.models, plan.base, plan.n_prompt, plan.n_gen, over):
        say(f"{record['model']} {record['percent']}% {record['policy']}: {record.get('median_ts') or 'left out'}")
        runs.append(record)
    folder.mkdir(parents=True, exist_ok=True)
    with warm_engine(plan.models[0], plan.base) as opened:
        step = profile_step(opened, folder / "step.json")
    findings = {
        "device": gpu.name,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "seconds": time.perf_counter() - started,
        "kernels": kernels,
        "streaming": streaming,
        "runs": runs,
        "step": step,
    }
    write(findings, folder)
    return findings


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument("--seconds", type=float, default=280)
    parser.add_argument("--models", type=Path, help="folder that keeps the random models for another run")
    options = parser.parse_args(argv)
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    started = time.perf_counter()
    try:
        gpu = choose_gpu("cuda", say)
    except UsageError as error:
        say(str(error))
        return error.exit_code
    assert gpu is not None
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.models or Path(scratch)
        base = RunOptions(device="cuda", ctx_size=1024, no_profile=True, seed=1)
        small = demo_model()
        models = []
        for name, quant, layers in SHAPES:
            say(f"making {name}")
            kept = sorted((folder / name).glob("*.gguf"))
            models.append(kept[0] if kept else synthesize(name, folder / name, quant, num_layers=layers))
        plan = Plan(True, min(10, os.cpu_count() or 1), small, models, base, 512, 64)
        left = options.seconds - (time.perf_counter() - started)
        faults = failures(run(gpu, plan, options.out, left, say))
    for fault in faults:
        say(fault)
    print(options.out / "gpu.md")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
