"""From routing settings to the policy that runs: its logical cache, sized and with an eviction of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernels.backend import Backend
from models.expert_provider import RouterWeights
from pearl_cli.predict.base import NextUse
from pearl_cli.residency.eviction.base import EvictionPolicy
from pearl_cli.routing.base import RoutingPolicy
from pearl_cli.routing.cache_prior import CachePriorRouting
from pearl_cli.routing.exact import ExactRouting
from pearl_cli.routing.logical_cache import LogicalCache
from pearl_cli.routing.physical import PhysicalCachePrior
from pearl_cli.routing.psr import PrefetchSteeredRouting
from pearl_cli.routing.settings import RoutingSettings


def logical_capacities(
    settings: RoutingSettings, routers: Sequence[RouterWeights | None], slot_capacities: Sequence[int]
) -> list[int | None]:
    """Experts a layer that the logical cache holds: the asked share, rounded, or what the slots hold."""
    return [
        None if router is None
        else slots if settings.residency is None
        else round(settings.residency * router.spec.num_experts)
        for router, slots in zip(routers, slot_capacities, strict=True)
    ]  # fmt: skip


def make_routing(
    settings: RoutingSettings,
    routers: Sequence[RouterWeights | None],
    backend: Backend,
    slot_capacities: Sequence[int],
    make_policy: Callable[[], EvictionPolicy],
    next_use: NextUse | None,
) -> RoutingPolicy:
    """The policy of `settings`, whose lambda_ and inserts must be numbers by now. make_policy, next_use: how its
    logical cache evicts; not shared with anything else. Raises ValueError.
    """
    if settings.exact and settings.residency is None:
        return ExactRouting(backend)
    if settings.lambda_ is None or settings.inserts is None:
        raise ValueError("automatic routing settings must be resolved first")
    num_experts = next(router.spec.num_experts for router in routers if router is not None)
    capacities = logical_capacities(settings, routers, slot_capacities)
    logical = LogicalCache(capacities, num_experts, make_policy, next_use, settings.steering)
    if settings.inserts == 0 and settings.deterministic:
        return CachePriorRouting(backend, logical, settings.lambda_, settings.top_j, settings.name)
    kind = PrefetchSteeredRouting if settings.deterministic else PhysicalCachePrior
    steering = (settings.lambda_, settings.top_j, settings.inserts)
    return kind(backend, logical, routers, *steering, steering=settings.steering, name=settings.name)
