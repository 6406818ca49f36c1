"""Who decides in a run, from its first token: what leaves a slot, what is fetched ahead, which experts compute.

Cache-aware routing takes its place only when the engine stands (`OpenedEngine.route_by`): until then it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.config import ModelConfig
from models.expert_provider import RouterWeights
from pearl_cli.flag_files import file_of
from pearl_cli.groundwork import Groundwork
from pearl_cli.options import RunOptions
from pearl_cli.predict.base import NextUse, Predictor
from pearl_cli.predict.choose import AUTO
from pearl_cli.residency.auto.plan import AutoPlan
from pearl_cli.residency.eviction import EvictionPolicy, make_policy
from pearl_cli.residency.usage_profile import UsageProfile
from pearl_cli.routing.base import RoutingPolicy
from pearl_cli.routing.exact import ExactRouting
from pearl_cli.routing.recorded import RecordedRouting
from pearl_cli.trace import read_trace


@dataclass(frozen=True, slots=True)
class RunPolicies:
    """next_use: what eviction looks ahead with, None where it looks back; predictor: what is fetched by, None for
    nothing; auto: what is found out while running, None where the user has said what to do.
    """

    eviction: EvictionPolicy
    next_use: NextUse | None
    predictor: Predictor | None
    routing: RoutingPolicy
    auto: AutoPlan | None = None


def run_policies(
    ground: Groundwork,
    options: RunOptions,
    routers: Sequence[RouterWeights | None],
    pinned: UsageProfile | None,
) -> RunPolicies:
    """pinned: what static eviction goes by without a trace of --usage. Raises UsageError, FileError."""
    config, forecasting, seed = ground.config, ground.forecasting, max(options.seed, 0)
    recorded = _recorded(options, config)
    next_use = forecasting.next_use(config)
    future = recorded.future if recorded is not None else None
    predictor = forecasting.predictor(config, routers, ground.backend, next_use, future, seed)
    auto = forecasting.auto_plan(config, routers, ground.backend)
    if ground.plan.all_resident:
        predictor = auto = None  # there is nothing to fetch
    if AUTO in options.switched_off or ground.on_device is not None:
        auto = None
    eviction = chosen_eviction(ground, options, pinned)
    return RunPolicies(eviction, next_use, predictor, recorded or ExactRouting(ground.backend), auto)


def chosen_eviction(ground: Groundwork, options: RunOptions, pinned: UsageProfile | None) -> EvictionPolicy:
    """What leaves a slot; pinned: as `run_policies` has it. Raises UsageError."""
    popularity = pinned.counts if pinned is not None else None
    if ground.usage is not None:
        popularity = ground.usage.use_counts()
    cost = ground.places.reload_cost(ground.config.router.num_experts)
    return make_policy(ground.forecasting.evict, popularity, max(options.seed, 0), cost)


def _recorded(options: RunOptions, config: ModelConfig) -> RecordedRouting | None:
    if options.route_trace is None:
        return None
    with file_of("--route-trace"):
        return RecordedRouting(read_trace(options.route_trace), config)
