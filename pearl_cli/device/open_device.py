"""Plan and open the residency of a run on a GPU: slots there as large as they come, experts in host memory behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from kernels.gpu.device_calls import DeviceMemoryError
from models.config import ModelConfig
from models.errors import MemoryPlanError
from models.expert_provider import RouterWeights
from models.gguf import GGUFModel
from models.gguf_files import MemoryFiles
from models.kv_cache import KVCache
from models.loader import non_expert_bytes
from models.model import Model
from pearl_cli.device.build import CpuForMisses, build_device_controller
from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.device.device_side import DeviceSide
from pearl_cli.device.graphed_block import RecordingBackend, record_decoding
from pearl_cli.device.host_slots import HostPlan
from pearl_cli.device.measure_copies import link_bytes_per_s
from pearl_cli.device.measure_misses import measure_misses
from pearl_cli.device.store_in_place import lock_limit, lock_store, unlock_store
from pearl_cli.device.vram_plan import (
    HOST_WORKSPACE_BYTES,
    VramNeeds,
    device_workspace_bytes,
    plan_host,
    plan_vram,
    smaller,
)
from pearl_cli.host_memory import available_bytes, rss_bytes
from pearl_cli.memory_plan import DEFAULT_SHARE, MemoryPlan, choose_context, typed
from pearl_cli.open_model import wanted_by
from pearl_cli.options import RunOptions
from pearl_cli.predict.base import NextUse, Predictor
from pearl_cli.residency.ablations import CopyPieces
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.eviction import EvictionPolicy
from pearl_cli.residency.transfer import ReadFunction
from pearl_cli.residency.uneven_split import Split
from pearl_cli.routing.base import RoutingPolicy
from pearl_cli.sizes import Size
from pearl_cli.what_fits import what_fits

if TYPE_CHECKING:
    from kernels.gpu.open_gpu import OpenGpu


_PASSING_BYTES = 256 << 20  # of host slots that experts only pass through: once, or out of a store that is not locked


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """vram: where the bytes on the GPU go; host: slots in host memory; staging: slots in vram beyond what layers keep,
    so that a whole token's misses find room, twice; split: of vram's slots over layers; store: in RAM, which does
    without slots in host memory where its region has up to `store_lock_bytes` and can be page-locked.
    """

    gpu: OpenGpu
    vram: MemoryPlan
    host: HostPlan
    staging: int
    split: Split | None = None
    store: MemoryFiles | None = None
    store_lock_bytes: int = 0


def plan_device(
    gpu: OpenGpu,
    gguf: GGUFModel,
    config: ModelConfig,
    places: ExpertPlaces,
    options: RunOptions,
    default_budget: Size | None,
    prefetch_slots: int,
    split: Split | None,
    notify: Callable[[str], None] | None,
) -> DevicePlan:
    """The plan for these flags; default_budget: of slots on the GPU where neither --vram nor --budget is given; split:
    of those over layers. Raises MemoryPlanError, UsageError.
    """
    weights = non_expert_bytes(gguf, config)
    num_experts = config.router.num_experts
    staging = prefetch_slots + 2 * config.router.num_experts_per_tok

    def planned(asked: RunOptions, told: Callable[[str], None] | None = None) -> MemoryPlan:
        budget = asked.budget if asked.budget is not None or asked.vram is not None else default_budget
        needs = _vram_needs(config, asked, weights)
        return plan_vram(gpu.calls, needs, places.slot_bytes, num_experts, asked.vram, budget, staging, split, told)

    try:
        vram = planned(options, notify)
    except MemoryPlanError as error:
        context = choose_context(options.ctx_size, config.context_length)
        raise MemoryPlanError(f"{error}{what_fits(planned, options, context, 'vram')}") from error
    process, available, store = rss_bytes(), _available(), gguf.memory
    ceiling = options.ram.n_bytes if options.ram else process + int(DEFAULT_SHARE * available)
    lock_bytes = 0
    if store is not None:
        lock_bytes = lock_limit(store, process, HOST_WORKSPACE_BYTES, available, ceiling)
        process += store.missing_bytes(wanted_by(config))
    host = plan_host(
        places.slot_bytes, num_experts, process, weights, available, ceiling, options.ram is not None,
        most_bytes=_PASSING_BYTES if vram.all_resident or store is not None else None,
    )  # fmt: skip
    return DevicePlan(gpu, vram, host, staging, split, store, lock_bytes)


def _vram_needs(config: ModelConfig, options: RunOptions, weight_bytes: int) -> VramNeeds:
    """Raises UsageError for a context beyond the trained one."""
    context = choose_context(options.ctx_size, config.context_length)
    return VramNeeds(
        weight_bytes,
        KVCache.planned_bytes(config, context, options.cache_type_k, options.cache_type_v),
        device_workspace_bytes(config, min(options.ubatch_size, context)),
        context,
    )


def open_on_device(
    options: RunOptions,
    plan: DevicePlan,
    config: ModelConfig,
    places: ExpertPlaces,
    routers: Sequence[RouterWeights | None],
    policy: EvictionPolicy,
    routing: RoutingPolicy,
    read: ReadFunction,
    io_threads: int,
    predictor: Predictor | None,
    prefetch_depth: int,
    next_use: NextUse | None,
    notify: Callable[[str], None] | None,
) -> tuple[ResidencyController, MemoryPlan]:
    """The controller, and the plan as it came out: with fewer slots than planned where the device refused. Call it
    after weights and KV cache are there. Raises MemoryPlanError.
    """
    side, vram = _open_side(plan, config, places, notify)
    rate = link_bytes_per_s(side)
    shape = (config.hidden_size, config.moe_intermediate_size)
    host = lock_store(
        side.calls, plan.store, plan.store_lock_bytes, plan.host, places.slot_bytes, config.router.num_experts, notify
    )
    try:
        on_cpu = None
        if options.miss != "copy":
            on_cpu = _cpu_for_misses(options, host, side, config, places, routers, notify)
        if on_cpu is not None and predictor is not None:
            predictor = None
            if notify is not None:
                notify(f"--miss {options.miss}: experts are not fetched on forecasts")
        controller = build_device_controller(
            side, places, vram.slots, host, shape, routers, plan.gpu.backend, policy, routing, read, io_threads,
            predictor, prefetch_depth, notify, next_use, on_cpu, rate,
            CopyPieces.without(options.switched_off),
        )  # fmt: skip
    except BaseException:
        unlock_store(side.calls, host)
        raise
    return controller, vram


def _cpu_for_misses(
    options: RunOptions,
    host: HostPlan,
    side: DeviceSide,
    config: ModelConfig,
    places: ExpertPlaces,
    routers: Sequence[RouterWeights | None],
    notify: Callable[[str], None] | None,
) -> CpuForMisses | None:
    """None, with a word about why, where the CPU cannot stand in."""
    fault = None
    if sum(count for _, count in host.classes) < sum(len(triples) for triples in places.places):
        fault = "host memory does not hold all experts; a larger --ram would"
    elif any(router is not None and router.biases is not None for router in routers):
        fault = "this model's experts have biases, which are on the GPU"
    if fault is not None:
        if notify is not None:
            notify(f"--miss {options.miss}: {fault}: experts that miss are copied")
        return None
    from kernels.cpu.backend import CpuBackend

    cpu = CpuBackend()
    cpu.warmup({place.quant_type for triples in places.places for triple in triples for place in triple})
    shape = (config.hidden_size, config.moe_intermediate_size)
    rule = measure_misses(side, places, shape, cpu, always=options.miss == "cpu")
    if notify is not None:
        copied, computed = f"{1e6 * rule.copy_s:.0f} us", f"{1e6 * rule.cpu_s:.0f} us"
        notify(f"--miss {options.miss}: an expert is copied in {copied} and computed on the CPU in {computed}")
    return CpuForMisses(cpu, rule)


@contextmanager
def room_on_device(plan: DevicePlan | None) -> Iterator[None]:
    """Weights and KV cache that do not fit a GPU are a fault of the plan: MemoryPlanError. Nothing without a GPU."""
    if plan is None:
        yield
        return
    try:
        yield
    except plan.gpu.out_of_memory as error:
        weights, kv = typed(plan.vram.needs.weight_bytes), typed(plan.vram.needs.kv_bytes)
        raise MemoryPlanError(
            f"the GPU has no room for weights of {weights} and a KV cache of {kv}; close other programs, or give a"
            " smaller -c, or --device cpu"
        ) from error


def record_on_device(model: Model, plan: DevicePlan | None) -> None:
    """Let the layers of `model` that can be recorded be so; nothing without a GPU."""
    if plan is not None:
        record_decoding(model, plan.gpu.calls, cast(RecordingBackend, plan.gpu.backend))


def fill_host(
    controller: ResidencyController, pairs: Sequence[tuple[int, int]], all_on_device: bool
) -> None:
    """Before anything is loaded to the device: all experts into host memory, where it holds all of them and will be
    asked again. Nothing for a controller that computes in host memory. Raises ReadFailure.
    """
    queue = controller.queue
    if isinstance(queue, CopyQueue) and not all_on_device and queue.host.holds_all:
        queue.host.fill(pairs)


def _open_side(
    plan: DevicePlan, config: ModelConfig, places: ExpertPlaces, notify: Callable[[str], None] | None
) -> tuple[DeviceSide, MemoryPlan]:
    vram, num_experts = plan.vram, config.router.num_experts
    while True:
        try:
            side = DeviceSide.open(plan.gpu.calls, vram.slots, config.num_layers, num_experts)
        except DeviceMemoryError:
            vram = smaller(vram, places.slot_bytes, num_experts, plan.staging, plan.split)
            continue
        if vram is not plan.vram and notify is not None:
            wanted, got = typed(plan.vram.slots.n_bytes), typed(vram.slots.n_bytes)
            notify(f"the GPU had no room for {wanted} of expert slots: {got} are used")
        return side, vram


def _available() -> int:
    try:
        return available_bytes()
    except MemoryPlanError:  # the system does not say: nothing is page-locked as a whole
        return 0
