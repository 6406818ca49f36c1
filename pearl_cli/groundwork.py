"""What stands before the first weight of a run is read: config, kernels, where experts lie, forecasts, the byte plan.

`pearl plan` needs no more than this; `open_engine` goes on from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from kernels.backend import Backend
from kernels.cpu.backend import CpuBackend
from kernels.cpu.parallel import max_threads
from models.config import ModelConfig
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from pearl_cli.device.choose_gpu import check_device_flags, choose_gpu
from pearl_cli.device.kernel_timing import KernelTiming, NoKernelTiming
from pearl_cli.device.open_device import DevicePlan, plan_device
from pearl_cli.memory_plan import MemoryPlan
from pearl_cli.options import RunOptions
from pearl_cli.plan_run import plan_run
from pearl_cli.predict.choose import Forecasting, choose_forecasting
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.sizes import Size
from pearl_cli.trace import RouteTrace
from pearl_cli.usage import split_of, usage_trace

Progress = Callable[[str, int, int], None]
"""(stage, done, total): "compile" in kernels, "store" in bytes of a store in memory, "load" in bytes of experts."""


@dataclass(frozen=True, slots=True)
class Groundwork:
    """fetch_depth: experts a layer that forecasts may fetch, 0 for none; usage: the trace of --usage; on_device: where
    a GPU computes, whose `vram` is then the plan; timing: of kernels.
    """

    config: ModelConfig
    threads: int
    backend: Backend
    timing: KernelTiming
    places: ExpertPlaces
    forecasting: Forecasting
    fetch_depth: int
    usage: RouteTrace | None
    plan: MemoryPlan
    on_device: DevicePlan | None = None

    @property
    def device(self) -> str:
        """Where the run computes: "cpu", or the name of the GPU."""
        return "cpu" if self.on_device is None else self.on_device.gpu.name


def prepare(
    gguf: GGUFModel,
    options: RunOptions,
    default_budget: Size | None = None,
    notify: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Groundwork:
    """Make the kernels ready and plan the bytes, with the process as heavy as a run has it. Raises as `open_engine`."""
    config = ModelConfig.from_gguf(gguf)
    gpu = choose_gpu(options.device, notify, {info.quant_type for info in gguf.tensors.values()})
    check_device_flags(options, gpu is not None, notify)
    threads = choose_threads(options.threads, notify)
    places = ExpertPlaces.of(ExpertStore(gguf, config))
    forecasting = choose_forecasting(gguf, options.predictor, options.stride, options.evict, notify)
    depth = config.router.num_experts_per_tok if forecasting.fetch else 0
    usage = usage_trace(options, config, notify)
    prefetch_slots, split = depth * (forecasting.stride + 1), split_of(options, usage)
    if gpu is not None:
        on_device = plan_device(gpu, gguf, config, places, options, default_budget, prefetch_slots, split, notify)
        return Groundwork(
            config, threads, gpu.backend, NoKernelTiming(), places, forecasting, depth, usage, on_device.vram, on_device
        )
    cpu = _make_backend(threads, gguf, config, progress)
    plan = plan_run(gguf, config, places, options, default_budget, prefetch_slots, threads, split)
    return Groundwork(config, threads, cpu, cpu, places, forecasting, depth, usage, plan)


def choose_threads(asked: int, notify: Callable[[str], None] | None) -> int:
    """Kernel threads for `-t` (0: all cores that this process may use).

    More than that gains nothing and is not done.
    """
    cores = min(len(os.sched_getaffinity(0)), max_threads())
    if asked > cores and notify is not None:
        notify(f"-t {asked}: this process may use {cores} cores, so {cores} threads compute")
    return min(asked, cores) if asked else cores


def _make_backend(threads: int, gguf: GGUFModel, config: ModelConfig, progress: Progress | None) -> CpuBackend:
    backend = CpuBackend(threads)
    types = {info.quant_type for info in gguf.tensors.values()}
    told = (lambda name, done, total: progress("compile", done, total)) if progress is not None else None
    backend.warmup(types, told, recurrent=config.recurrent_ops)
    return backend
