"""A program of its own, because Triton decides at import whether kernels are interpreted: runs models on the GPU path
over the emulated device and on the CPU, and prints what came out as JSON.

Usage: python emulated_engine.py FOLDER; it writes its tiny models there.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.gpu.backend import GpuBackend
from kernels.gpu.emulated_calls import EmulatedCalls
from kernels.gpu.open_gpu import OpenGpu
from models.gguf import GGUFModel
from pearl_cli.device import choose_gpu
from pearl_cli.device.device_fields import device_fields
from pearl_cli.open_engine import open_engine
from pearl_cli.open_model import open_model
from pearl_cli.options import RunOptions
from pearl_cli.residency.stats import TokenStats
from pearl_cli.session import demo_model
from pearl_cli.sizes import Size
from tests.tiny_gguf import tiny_moe, write_gguf

OPTIONS = RunOptions(ctx_size=32, evict="lru", predictor="none", no_profile=True, seed=1)
PROMPT, N_NEW = [5, 9], 3


class TorchOps(TorchDispatchMode):
    """Counts torch's own operations by name; those of kernels are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def emulate(seed: int, **limits: Any) -> EmulatedCalls:
    """From now on `--device cuda` finds an emulated GPU of this seed."""
    calls = EmulatedCalls(seed, as_array=torch.from_numpy, **limits)
    choose_gpu._absence = lambda: None
    choose_gpu._open = lambda: OpenGpu(calls, GpuBackend(), "emulated")
    return calls


def run(
    model: Path | GGUFModel,
    options: RunOptions,
    seed: int = 0,
    prompt: list[int] = PROMPT,
    n_new: int = N_NEW,
    **limits: Any,
) -> dict[str, Any]:
    calls = emulate(seed, **limits)
    notes: list[str] = []
    with open_engine(model, options, notify=notes.append) as opened:
        logits = [opened.engine.prefill(prompt)]
        before = calls.counts.copy()
        stats, torch_ops = TokenStats(), []
        for _ in range(n_new):
            with TorchOps() as ops:
                logits.append(opened.engine.decode_step(int(logits[-1].argmax())))
            torch_ops.append(dict(ops.counts))
            stats += opened.controller.last_call
        return {
            "device": opened.device,
            "kept": sum(opened.plan.slots.capacities),
            "logits": np.array(logits, np.float64).tolist(),
            "misses": stats.misses,
            "hits": stats.hits,
            "prefetch_bytes": stats.prefetch_bytes,
            "decode_counts": dict(calls.counts - before),
            "torch_ops": torch_ops,
            "notes": notes,
            "fields": device_fields(opened.controller, opened.device, opened.plan),
        }


def tiny_cases(folder: Path) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    model = tiny_moe("qwen3moe")
    path = write_gguf(folder / "qwen3moe.gguf", model.metadata, model.tensors)
    exact = replace(OPTIONS, cache_type_k="f32", cache_type_v="f32")  # 16 bits may round either way
    cuda = replace(exact, device="cuda")
    few = replace(cuda, budget=Size(percent=30))
    cases["cpu"] = run(path, replace(exact, device="cpu"))
    cases["whole"] = run(path, cuda)
    cases["15%"] = run(path, replace(cuda, budget=Size(percent=15)), seed=1)
    cases["30%"] = run(path, few, seed=2)
    cases["fetching"] = run(path, replace(few, predictor="next-gate"), seed=3)
    cases["refused"] = run(path, replace(cuda, vram=Size(2 << 30)), seed=5, device_bytes=400_000)
    cases["misses on cpu"] = run(path, replace(few, miss="cpu"), seed=4)
    in_ram = replace(few, store="ram")
    cases["store"] = run(open_model(path, in_ram), in_ram, seed=8)
    cases["store refused"] = run(open_model(path, in_ram), in_ram, seed=9, pinned_bytes=0)
    psr = replace(few, routing="psr", lambda_="0.3", inserts=1)
    cases["psr cpu"] = run(path, replace(psr, device="cpu"))
    cases["psr"] = run(path, psr, seed=6)
    cases["psr again"] = run(path, psr, seed=7)
    return cases


def demo_cases() -> dict[str, Any]:
    cuda = replace(OPTIONS, device="cuda", budget=Size(percent=30))
    few = {"prompt": [5], "n_new": 1}
    return {
        "demo cpu": run(demo_model(), replace(OPTIONS, device="cpu"), **few),
        "demo 30%": run(demo_model(), cuda, **few),
        "demo 60%": run(demo_model(), replace(cuda, budget=Size(percent=60)), seed=1, **few),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    json.dump({**tiny_cases(Path(sys.argv[1])), **demo_cases()}, sys.stdout)
