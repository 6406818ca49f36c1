"""From a model file and the run's flags to a running engine: plan the bytes, refuse what does not fit, load, start the
readers. Each step is a room of its own; here is their order, and what is closed when one of them fails.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from models.gguf import GGUFModel
from models.kv_cache import KVCache
from models.loader import load_model
from models.model import Model
from pearl_cli.check_run import check_run
from pearl_cli.device.open_device import record_on_device, room_on_device
from pearl_cli.engine import Engine
from pearl_cli.groundwork import Groundwork, Progress, prepare
from pearl_cli.memory_warnings import warn_of_plan
from pearl_cli.open_controller import open_controller
from pearl_cli.open_model import fill_store, wanted_by
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.residency.open_reader import ChunkReader, open_reader
from pearl_cli.resolve_routing import resolve_routing
from pearl_cli.routing.settings import RoutingSettings, routing_settings
from pearl_cli.run_policies import RunPolicies, run_policies
from pearl_cli.sizes import Size
from pearl_cli.start_profile import StartProfile, load_at_start, start_profile

Notify = Callable[[str], None]


def open_engine(
    model: Path | GGUFModel,
    options: RunOptions,
    default_budget: Size | None = None,
    notify: Notify | None = None,
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
        settings = routing_settings(options)
        ground = prepare(gguf, options, default_budget, notify, progress)
        profile = start_profile(ground, gguf, options, settings, use_profile, notify)
        check_run(ground, gguf, options, settings, profile)
        warn_of_plan(ground.plan, ground.config, notify, on_gpu=ground.on_device is not None)
        fill_store(gguf, wanted_by(ground.config), ground.threads, progress)
        loaded, cache = _load(ground, gguf, options)
        policies = run_policies(ground, options, loaded.routers, profile.pinned)
        opened = _start(ground, gguf, options, loaded, cache, policies, profile, notify)
    except BaseException:
        gguf.close()
        raise
    try:
        _route(opened, settings)
        load_at_start(opened, ground.places, progress)
    except BaseException:
        opened.close()
        raise
    return opened


def _load(ground: Groundwork, gguf: GGUFModel, options: RunOptions) -> tuple[Model, KVCache]:
    """All weights but the experts', and an empty cache. Raises MemoryPlanError where a GPU has no room."""
    with room_on_device(ground.on_device):
        loaded = load_model(gguf, ground.backend)
        cache = loaded.new_cache(ground.plan.needs.context, options.cache_type_k, options.cache_type_v)
    record_on_device(loaded, ground.on_device)
    return loaded, cache


def _start(
    ground: Groundwork,
    gguf: GGUFModel,
    options: RunOptions,
    loaded: Model,
    cache: KVCache,
    policies: RunPolicies,
    profile: StartProfile,
    notify: Notify | None,
) -> OpenedEngine:
    """Start reader threads and put the engine together, with no expert in memory and routing as a run begins."""
    reader: ChunkReader = open_reader(gguf, options.throttle.n_bytes if options.throttle is not None else None, notify)
    try:
        controller, plan = open_controller(ground, gguf, options, loaded.routers, policies, reader, notify)
    except BaseException:
        reader.close()
        raise
    return OpenedEngine(
        engine=Engine(loaded, cache, controller, options.ubatch_size), gguf=gguf, config=ground.config, plan=plan,
        controller=controller, backend=ground.backend, timing=ground.timing, device=ground.device,
        threads=ground.threads, evict=ground.forecasting.evict, predictor=ground.forecasting.name,
        routing=RoutingSettings(), policy=policies.routing, options=options,
        expert_bytes_total=ground.places.expert_bytes_total, profile=profile.kept, reader=reader, notify=notify,
    )  # fmt: skip


def _route(opened: OpenedEngine, settings: RoutingSettings) -> None:
    """Put the asked routing in force, its automatic parts resolved. Raises UsageError."""
    if settings.exact:
        opened.routing = settings
        return
    settings = resolve_routing(opened, settings)
    opened.route_by(settings, opened.routing_for(settings))
