"""From a model file and the run's flags to a running engine: plan the bytes, refuse what does not fit, load, start the
readers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

import models.demo
from kernels.backend import Backend
from kernels.cpu.backend import CpuBackend
from kernels.cpu.memory import allocate
from kernels.cpu.parallel import max_threads
from models.config import ModelConfig
from models.expert_provider import RouterWeights
from models.expert_store import ExpertStore
from models.gguf import GGUFModel
from models.kv_cache import KVCache
from models.loader import load_model, non_expert_bytes
from pearl_cli.cache_dir import cache_dir
from pearl_cli.device.choose_gpu import check_device_flags, choose_gpu
from pearl_cli.device.kernel_timing import KernelTiming, NoKernelTiming
from pearl_cli.device.open_device import (
    DevicePlan,
    fill_host,
    open_on_device,
    plan_device,
    record_on_device,
    room_on_device,
)
from pearl_cli.engine import Engine
from pearl_cli.host_memory import available_bytes, peak_rss_bytes, rss_bytes
from pearl_cli.memory_plan import (
    DEFAULT_SHARE,
    FixedNeeds,
    MemoryPlan,
    choose_context,
    plan_memory,
    workspace_bytes,
)
from pearl_cli.memory_warnings import warn_of_plan
from pearl_cli.open_model import fill_store, wanted_by
from pearl_cli.open_routing import open_routing
from pearl_cli.options import RunOptions
from pearl_cli.predict.base import NextUse, Predictor
from pearl_cli.predict.choose import Forecasting, choose_forecasting
from pearl_cli.residency.ablations import CopyPieces
from pearl_cli.residency.arena import SlotArena, Slots
from pearl_cli.residency.build import ExpertPlaces, build_controller
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.eviction import EvictionPolicy, make_policy
from pearl_cli.residency.in_place import InPlaceSlots
from pearl_cli.residency.open_reader import ChunkReader, open_reader
from pearl_cli.residency.uneven_split import Split
from pearl_cli.residency.usage_profile import UsageProfile, profile_places
from pearl_cli.resolve_routing import resolve_routing
from pearl_cli.routing.base import RoutingPolicy
from pearl_cli.routing.exact import ExactRouting
from pearl_cli.routing.physical import PhysicalCachePrior
from pearl_cli.routing.recorded import RecordedRouting
from pearl_cli.routing.settings import RoutingSettings, routing_settings
from pearl_cli.sizes import Size
from pearl_cli.trace import RouteTrace, read_trace
from pearl_cli.usage import split_of, usage_trace

DEFAULT_IO_THREADS = 2

Progress = Callable[[str, int, int], None]
"""(stage, done, total): "compile" in kernels, "store" in bytes of a store in memory, "load" in bytes of experts."""


@dataclass(slots=True)
class OpenedEngine:
    """An engine with what it was made of; a context manager that ends reader threads and closes files."""

    engine: Engine
    gguf: GGUFModel
    config: ModelConfig
    plan: MemoryPlan
    controller: ResidencyController
    backend: Backend
    timing: KernelTiming
    device: str  # "cpu", or the name of the GPU
    threads: int
    evict: str
    predictor: str
    routing: RoutingSettings
    policy: RoutingPolicy
    options: RunOptions
    expert_bytes_total: int
    profile: UsageProfile | None
    reader: ChunkReader
    _notify: Callable[[str], None] | None

    def say(self, text: str) -> None:
        """A line for the user."""
        if self._notify is not None:
            self._notify(text)

    def routing_for(self, settings: RoutingSettings) -> RoutingPolicy:
        """A policy of these settings with an empty logical cache, not in force yet. Raises UsageError."""
        policy = open_routing(
            settings, self.gguf, self.config, self.options, self.engine.model.routers, self.backend,
            self.plan.slots.capacities, self._notify,
        )  # fmt: skip
        if isinstance(policy, PhysicalCachePrior):
            policy.landed = self.controller.landed
        return policy

    def route_by(self, settings: RoutingSettings, policy: RoutingPolicy) -> None:
        """Let a policy of `routing_for` choose experts from now on; between two forward calls."""
        self.controller.route_by(policy)
        self.routing, self.policy = settings, policy

    def close(self) -> None:
        if self.profile is not None:
            self.profile.save(self.controller.layers)
        self.controller.close()
        self.reader.close()
        self.gguf.close()

    def __enter__(self) -> OpenedEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_engine(
    model: Path | GGUFModel,
    options: RunOptions,
    default_budget: Size | None = None,
    notify: Callable[[str], None] | None = None,
    progress: Progress | None = None,
    use_profile: bool = False,
) -> OpenedEngine:
    """Open `model` as `options` say. `default_budget` holds where neither --ram nor --budget is given; `use_profile`
    loads the experts that earlier sessions used most, and adds this session's use at the end.

    What the process already weighs counts under the ceiling, so make the tokenizer before. Raises the errors of reading
    and planning.
    """
    gguf = model if isinstance(model, GGUFModel) else GGUFModel.open(model)
    try:
        return _open(gguf, options, default_budget, notify, progress, use_profile)
    except BaseException:
        gguf.close()
        raise


@dataclass(frozen=True, slots=True)
class Groundwork:
    """What stands before the first weight is read. fetch_depth: experts a layer that forecasts may fetch, 0 for none;
    usage: the trace of --usage; on_device: where a GPU computes, whose `vram` is then the plan; timing: of kernels.
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
    usage = usage_trace(options, config)
    prefetch_slots, split = depth * (forecasting.stride + 1), split_of(options, usage)
    if gpu is not None:
        on_device = plan_device(gpu, gguf, config, places, options, default_budget, prefetch_slots, split, notify)
        return Groundwork(
            config, threads, gpu.backend, NoKernelTiming(), places, forecasting, depth, usage, on_device.vram, on_device
        )
    cpu = _make_backend(threads, gguf, config, progress)
    plan = plan_run(gguf, config, places, options, default_budget, prefetch_slots, threads, split)
    return Groundwork(config, threads, cpu, cpu, places, forecasting, depth, usage, plan)


def _open(
    gguf: GGUFModel,
    options: RunOptions,
    default_budget: Size | None,
    notify: Callable[[str], None] | None,
    progress: Progress | None,
    use_profile: bool,
) -> OpenedEngine:
    settings = routing_settings(options)
    ground = prepare(gguf, options, default_budget, notify, progress)
    config, backend, places, plan = ground.config, ground.backend, ground.places, ground.plan
    forecasting = ground.forecasting
    warn_of_plan(plan, config, notify, on_gpu=ground.on_device is not None)
    fill_store(gguf, wanted_by(config), ground.threads, progress)
    with room_on_device(ground.on_device):
        loaded = load_model(gguf, backend)
        cache = loaded.new_cache(plan.needs.context, options.cache_type_k, options.cache_type_v)
    record_on_device(loaded, ground.on_device)
    evict, seed = forecasting.evict, max(options.seed, 0)
    next_use = forecasting.next_use(config)
    recorded = RecordedRouting(read_trace(options.route_trace), config) if options.route_trace is not None else None
    future = recorded.future if recorded is not None else None
    predictor = forecasting.predictor(config, loaded.routers, backend, next_use, future, seed)
    routing = recorded or ExactRouting(backend)
    # Routing that follows a cache must begin the same each time, so no earlier run may fill it.
    use_profile = use_profile and settings.exact and recorded is None
    pins_by_profile = evict == "static" and ground.usage is None
    profile = _profile_of(gguf, config, options, notify) if use_profile or pins_by_profile else None
    reader = open_reader(gguf, options.throttle.n_bytes if options.throttle is not None else None, notify)
    try:
        cost = places.reload_cost(config.router.num_experts)
        counts = profile.counts if profile is not None else None
        policy = make_policy(evict, ground.usage.use_counts() if ground.usage is not None else counts, seed, cost)
        parts = (loaded.routers, policy, routing, reader, options.io_threads or DEFAULT_IO_THREADS)
        controller, plan = _build(ground, gguf, options, parts, predictor, next_use, notify)
    except BaseException:
        reader.close()
        raise
    engine = Engine(loaded, cache, controller, options.ubatch_size)
    opened = OpenedEngine(
        engine=engine, gguf=gguf, config=config, plan=plan, controller=controller, backend=backend,
        timing=ground.timing, device="cpu" if ground.on_device is None else ground.on_device.gpu.name,
        threads=ground.threads, evict=evict, predictor=forecasting.name, routing=settings, policy=routing,
        expert_bytes_total=places.expert_bytes_total, profile=profile if use_profile else None,
        reader=reader, options=options, _notify=notify,
    )  # fmt: skip
    try:
        if not settings.exact:
            settings = resolve_routing(opened, settings)
            opened.route_by(settings, opened.routing_for(settings))
        _load_at_start(opened, places, progress)
    except BaseException:
        opened.close()
        raise
    return opened


def _build(
    ground: Groundwork,
    gguf: GGUFModel,
    options: RunOptions,
    parts: tuple[Sequence[RouterWeights | None], EvictionPolicy, RoutingPolicy, ChunkReader, int],
    predictor: Predictor | None,
    next_use: NextUse | None,
    notify: Callable[[str], None] | None,
) -> tuple[ResidencyController, MemoryPlan]:
    """The controller where the run computes, and the plan as it came out. parts: routers, eviction policy, routing, the
    reader and its threads.
    """
    routers, policy, routing, reader, io_threads = parts
    config, places, plan, depth = ground.config, ground.places, ground.plan, ground.fetch_depth
    if plan.all_resident:
        predictor = None  # there is nothing to fetch
    if ground.on_device is not None:
        return open_on_device(
            options, ground.on_device, config, places, routers, policy, routing, reader.read, io_threads, predictor,
            depth, next_use, notify,
        )  # fmt: skip
    controller = build_controller(
        places, plan.slots, (config.hidden_size, config.moe_intermediate_size), routers, ground.backend, policy,
        routing, reader.read, io_threads, _slots_for(gguf, plan), predictor, depth, notify, next_use,
        CopyPieces.without(options.switched_off), reader.read_scattered,
    )  # fmt: skip
    return controller, plan


def _slots_for(gguf: GGUFModel, plan: MemoryPlan) -> Callable[[Sequence[tuple[int, int]]], Slots]:
    """How slots are made: none but the store itself where experts are computed in it."""
    if plan.in_place and gguf.memory is not None:
        return partial(InPlaceSlots, address_of=gguf.memory.address)
    return partial(SlotArena, allocate=allocate)


def _profile_of(
    gguf: GGUFModel, config: ModelConfig, options: RunOptions, notify: Callable[[str], None] | None
) -> UsageProfile | None:
    """The profile beside the model; in the cache folder for one that ships inside pearl or was made in memory."""
    model_bytes = gguf.headers[0].file_bytes
    shipped = Path(next(iter(models.demo.__path__))).resolve() == gguf.paths[0].resolve().parent
    beside = options.model is not None and gguf.memory is None and not shipped
    places = profile_places(gguf.paths[0], model_bytes, cache_dir(), beside)
    shape = (config.num_layers, config.router.num_experts)
    return UsageProfile(places, model_bytes, shape, notify) if places else None


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
    backend.warmup(types, told, recurrent=config.state_bytes > 0)
    return backend


def plan_run(
    gguf: GGUFModel, config: ModelConfig, places: ExpertPlaces, options: RunOptions, default_budget: Size | None = None,
    prefetch_slots: int = 0, threads: int = 1, split: Split | None = None,
) -> MemoryPlan:
    """The plan for these flags on this machine, from the process as it stands now. prefetch_slots: for forecasts.
    A store in host memory that was given no budget is computed in place.

    Raises MemoryPlanError, UsageError.
    """
    context = choose_context(options.ctx_size, config.context_length)
    store = gguf.memory
    needs = FixedNeeds(
        process_bytes=rss_bytes(),
        weight_bytes=non_expert_bytes(gguf, config) + (store.missing_bytes(wanted_by(config)) if store else 0),
        kv_bytes=KVCache.planned_bytes(config, context, options.cache_type_k, options.cache_type_v),
        workspace_bytes=workspace_bytes(config, min(options.ubatch_size, context)),
        context=context,
        peak_bytes=peak_rss_bytes(),
        filling_bytes=store.filling_bytes(threads) if store else 0,
    )
    budget = options.budget
    if budget is None and options.ram is None:
        budget = default_budget
    ceiling = options.ram.n_bytes if options.ram else rss_bytes() + int(DEFAULT_SHARE * available_bytes())
    return plan_memory(
        needs, places.slot_bytes, config.router.num_experts, ceiling, budget, ceiling_is_asked=options.ram is not None,
        prefetch_slots=prefetch_slots, in_place=store is not None and budget is None, split=split,
    )


def _load_at_start(opened: OpenedEngine, places: ExpertPlaces, progress: Progress | None) -> None:
    """All experts where they fit, else those that earlier sessions used most; in the order of the files."""
    controller, pairs = opened.controller, places.in_file_order()
    fill_host(controller, pairs, opened.plan.all_resident)
    if opened.profile is not None:
        opened.profile.seed(controller.layers)
    if not opened.plan.all_resident:
        hot = opened.profile.hottest(controller.layers) if opened.profile is not None else set()
        pairs = [pair for pair in pairs if pair in hot]
    done, total = 0, sum(place.n_bytes for layer, expert in pairs for place in places.places[layer][expert])

    def landed(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress is not None:
            progress("load", done, total)

    controller.load_experts(pairs, landed)
