"""Build the routing policy that settings name for an open model, with an eviction and a forecast of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels.backend import Backend
from models.config import ModelConfig
from models.expert_provider import RouterWeights
from models.gguf import GGUFModel
from pearl_cli.options import RunOptions
from pearl_cli.predict.choose import choose_forecasting
from pearl_cli.residency.eviction import make_policy
from pearl_cli.residency.eviction.base import EvictionPolicy
from pearl_cli.routing.base import RoutingPolicy
from pearl_cli.routing.check_counts import check_counts
from pearl_cli.routing.choose import make_routing
from pearl_cli.routing.logical_cache import LogicalCache
from pearl_cli.routing.settings import RoutingSettings


def open_routing(
    settings: RoutingSettings,
    gguf: GGUFModel,
    config: ModelConfig,
    options: RunOptions,
    routers: Sequence[RouterWeights | None],
    backend: Backend,
    slot_capacities: Sequence[int],
    notify: Callable[[str], None] | None = None,
) -> RoutingPolicy:
    """options: for predictor, stride and seed. Raises UsageError, FileError for the predictor."""
    check_counts(settings, config.router.num_experts, config.router.num_experts_per_tok)
    forecasting = choose_forecasting(gguf, options.predictor, options.stride, settings.evict, notify)
    seed = max(options.seed, 0)

    def policy() -> EvictionPolicy:
        return make_policy(forecasting.evict, seed=seed)

    next_use = forecasting.next_use(config)
    routing = make_routing(settings, routers, backend, slot_capacities, policy, next_use)
    if routing.logical is not None and not routing.exact and notify is not None:
        _warn_of_larger_cache(routing.logical, slot_capacities, notify)
    return routing


def _warn_of_larger_cache(
    logical: LogicalCache, slot_capacities: Sequence[int], notify: Callable[[str], None]
) -> None:
    for cache, slots in zip(logical.layers, slot_capacities, strict=True):
        if cache is not None and cache.capacity > slots:
            notify(
                f"--residency: the logical cache holds {cache.capacity} experts of a layer, its slots {slots}: the "
                "bonus also goes to experts that must be read; a larger --budget or a smaller --residency avoids it"
            )
            return
