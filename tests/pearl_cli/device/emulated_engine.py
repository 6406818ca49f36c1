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
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from triton.runtime.interpreter import GridExecutor

from kernels.gpu.backend import GpuBackend
from kernels.gpu.emulated_calls import EmulatedCalls, EmulatedGraph
from kernels.gpu.open_gpu import OpenGpu
from models.gguf import GGUFModel
from pearl_cli.device import choose_gpu, open_device
from pearl_cli.device.device_fields import device_fields
from pearl_cli.device.vram_plan import HOST_WORKSPACE_BYTES
from pearl_cli.memory_plan import MIB, FixedNeeds
from pearl_cli.open_engine import open_engine
from pearl_cli.open_model import open_model
from pearl_cli.options import RunOptions
from pearl_cli.residency.stats import TokenStats
from pearl_cli.session import demo_model
from pearl_cli.sizes import Size
from tests.tiny_gguf import tiny_moe, write_gguf

OPTIONS = RunOptions(ctx_size=32, evict="lru", predictor="none", no_profile=True, seed=1)
PROMPT, N_NEW = [5, 9], 3
LONGER, N_LONGER = [5, 9, 31, 17, 4, 60, 2, 44, 9, 30], 5  # many tokens at once, which want nearly every expert


class TorchOps(TorchDispatchMode):
    """Counts torch's own operations by name, and how many made new memory: not those of interpreted kernels, and not
    those of a replay, which on a device makes none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.allocations = 0
        self._hidden = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self._hidden:
            self.counts[func.overloadpacket.__name__] += 1
            self.allocations += bool(_memory(out) - _memory((args, kwargs)))
        return out

    def __enter__(self) -> Any:
        self._patches = [self._hide(GridExecutor, "__call__"), self._hide(EmulatedGraph, "_do")]
        for patch in self._patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        for patch in self._patches:
            patch.stop()

    def _hide(self, owner: type, name: str) -> Any:
        real = getattr(owner, name)

        def hidden(*args: Any, **kwargs: Any) -> Any:
            self._hidden += 1
            try:
                return real(*args, **kwargs)
            finally:
                self._hidden -= 1

        return mock.patch.object(owner, name, hidden)


def _memory(tree: Any) -> set[int]:
    """Where the tensors of a call lie."""
    leaves = tree_flatten(tree)[0]
    return {leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.numel()}


def emulate(seed: int, **limits: Any) -> OpenGpu:
    """From now on `--device cuda` finds this emulated GPU of this seed."""
    gpu = OpenGpu(EmulatedCalls(seed, as_array=torch.from_numpy, **limits), GpuBackend(), "emulated")
    choose_gpu._absence = lambda: None
    choose_gpu._open = lambda: gpu
    return gpu


def run(
    model: Path | GGUFModel,
    options: RunOptions,
    seed: int = 0,
    prompt: list[int] = PROMPT,
    n_new: int = N_NEW,
    **limits: Any,
) -> dict[str, Any]:
    gpu = emulate(seed, **limits)
    calls = gpu.calls
    notes: list[str] = []
    with open_engine(model, options, notify=notes.append) as opened:
        logits = [opened.engine.prefill(prompt)]
        before = calls.counts.copy()
        stats, torch_ops, allocations, uploads = TokenStats(), [], [], []
        for _ in range(n_new):
            sent = gpu.backend.staging.uploads
            with TorchOps() as ops:
                logits.append(opened.engine.decode_step(int(logits[-1].argmax())))
            torch_ops.append(dict(ops.counts))
            allocations.append(ops.allocations)
            uploads.append(gpu.backend.staging.uploads - sent)
            stats += opened.controller.last_call
        return {
            "device": opened.device,
            "kept": sum(opened.plan.slots.capacities),
            "vram_needs": opened.plan.needs.total_bytes,
            "expert_bytes": opened.plan.expert_slot_bytes_total,
            "logits": np.array(logits, np.float64).tolist(),
            "misses": stats.misses,
            "hits": stats.hits,
            "prefetch_bytes": stats.prefetch_bytes,
            "decode_counts": dict(calls.counts - before),
            "torch_ops": torch_ops,
            "allocations": allocations,
            "uploads": uploads,
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
    cases["whole, longer"] = run(path, cuda, 0, LONGER, N_LONGER)
    cases |= three_tiers(path, cuda, cases["whole"])
    return cases


def three_tiers(path: Path, cuda: RunOptions, whole: dict[str, Any]) -> dict[str, Any]:
    """Both ceilings at once: room for a third of the experts on the device and for half of them in host memory. The
    plan is told a process of a fixed size, because the tiny model is smaller than what the real one's varies by.
    """
    experts, process = whole["expert_bytes"], 100 * MIB
    host = FixedNeeds(process, 0, 0, HOST_WORKSPACE_BYTES, 0).total_bytes
    options = replace(
        cuda, vram=Size(whole["vram_needs"] + experts // 3), ram=Size(host + experts // 2), io_threads=2
    )
    with mock.patch.object(open_device, "rss_bytes", return_value=process):
        steered = replace(options, predictor="next-gate")
        cases = {f"tiers {seed}": run(path, options, seed, LONGER, N_LONGER) for seed in range(10, 14)}
        return {**cases, "tiers fetching": run(path, steered, 14, LONGER, N_LONGER)}


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
