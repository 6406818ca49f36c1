"""Put the residency controller of a device together: slots and slot table there, experts in host memory behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from kernels.backend import Backend
from models.expert_provider import RouterWeights
from pearl_cli.device.copy_queue import LINK_BYTES_PER_S, CopyQueue
from pearl_cli.device.device_side import DeviceSide
from pearl_cli.device.host_experts import HostExperts
from pearl_cli.device.host_slots import HostPlan
from pearl_cli.device.host_tier import HostTier
from pearl_cli.device.miss_rule import MissRule
from pearl_cli.device.mixed_controller import MixedController
from pearl_cli.device.streamed_experts import StreamedExperts
from pearl_cli.predict.base import NextUse, Predictor
from pearl_cli.residency.ablations import CopyPieces
from pearl_cli.residency.build import ExpertPlaces, layer_states
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.eviction import EvictionPolicy
from pearl_cli.residency.prefetch import Prefetcher
from pearl_cli.residency.slot_plan import SlotPlan
from pearl_cli.residency.transfer import ReadFunction
from pearl_cli.routing.base import RoutingPolicy


@dataclass(frozen=True, slots=True)
class CpuForMisses:
    """A backend on host arrays, and when to use it."""

    backend: Backend
    rule: MissRule


def build_device_controller(
    side: DeviceSide,
    places: ExpertPlaces,
    plan: SlotPlan,
    host_plan: HostPlan,
    shape: tuple[int, int],
    routers: Sequence[RouterWeights | None],
    backend: Backend,
    policy: EvictionPolicy,
    routing: RoutingPolicy,
    read: ReadFunction,
    io_threads: int = 1,
    predictor: Predictor | None = None,
    prefetch_depth: int = 0,
    notify: Callable[[str], None] | None = None,
    next_use: NextUse | None = None,
    on_cpu: CpuForMisses | None = None,
    link_bytes_per_s: float = LINK_BYTES_PER_S,
    pieces: CopyPieces | None = None,
) -> ResidencyController:
    """As `pearl_cli.residency.build.build_controller`, with `plan` for the slots of the device; on_cpu: who computes
    what misses there, where that may be; nothing is fetched on forecasts then.
    """
    pieces = pieces or CopyPieces()
    layers = layer_states(places, plan, shape, routers, policy)
    host = HostTier(side.calls, side.copies, places.places, host_plan, read, io_threads, notify)
    # Half of the slots that belong to no layer: a long prompt computes these while the others are filled.
    most_at_once = max(1, plan.staging // 2)
    queue = CopyQueue(side, host, most_at_once, link_bytes_per_s, pieces)
    host_experts = HostExperts(on_cpu.backend, host) if on_cpu is not None else None
    experts = StreamedExperts(backend, side, layers, host_experts)
    if on_cpu is not None:
        mixed = MixedController(
            layers, routers, cast(Backend, experts), side.arena, queue, routing, next_use, experts, on_cpu.rule
        )
        mixed.route_by(routing)
        return mixed
    prefetcher = None
    if predictor is not None:
        prefetcher = Prefetcher(predictor, layers, side.arena, queue, prefetch_depth, notify=notify)
    controller = ResidencyController(
        layers, routers, cast(Backend, experts), side.arena, queue, routing, prefetcher, next_use,
        pieces.reorder,
    )  # fmt: skip
    controller.route_by(routing)
    return controller
