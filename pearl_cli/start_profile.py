"""What earlier sessions used, for the start of this one: whether it is read at all, and what it loads first.

The file and its numbers are `residency.usage_profile`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import models.demo
from models.gguf import GGUFModel
from pearl_cli.cache_dir import cache_dir
from pearl_cli.device.open_device import fill_host
from pearl_cli.groundwork import Groundwork, Progress
from pearl_cli.opened_engine import OpenedEngine
from pearl_cli.options import RunOptions
from pearl_cli.residency.build import ExpertPlaces
from pearl_cli.residency.usage_profile import UsageProfile, profile_places
from pearl_cli.routing.settings import RoutingSettings


@dataclass(frozen=True, slots=True)
class StartProfile:
    """pinned: what `--evict static` goes by, None where a trace of --usage says it or nothing asks; kept: what is
    loaded first and saved at the end, None for a run that leaves it alone. The same object where both are there.
    """

    pinned: UsageProfile | None = None
    kept: UsageProfile | None = None


def start_profile(
    ground: Groundwork,
    gguf: GGUFModel,
    options: RunOptions,
    settings: RoutingSettings,
    wanted: bool,
    notify: Callable[[str], None] | None,
) -> StartProfile:
    """`wanted`: by the command; routing that follows a cache must begin the same each time, so no earlier run may fill
    it, whatever is wanted.
    """
    keeps = wanted and settings.exact and options.route_trace is None
    pins = ground.forecasting.evict == "static" and ground.usage is None
    profile = _profile_of(ground, gguf, options, notify) if keeps or pins else None
    return StartProfile(profile if pins else None, profile if keeps else None)


def load_at_start(opened: OpenedEngine, places: ExpertPlaces, progress: Progress | None) -> None:
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


def _profile_of(
    ground: Groundwork, gguf: GGUFModel, options: RunOptions, notify: Callable[[str], None] | None
) -> UsageProfile | None:
    """The profile beside the model; in the cache folder for one that ships inside pearl or was made in memory."""
    model_bytes = gguf.headers[0].file_bytes
    shipped = Path(next(iter(models.demo.__path__))).resolve() == gguf.paths[0].resolve().parent
    beside = options.model is not None and gguf.memory is None and not shipped
    places = profile_places(gguf.paths[0], model_bytes, cache_dir(), beside)
    shape = (ground.config.num_layers, ground.config.router.num_experts)
    return UsageProfile(places, model_bytes, shape, notify) if places else None
