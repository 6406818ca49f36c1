"""Put a residency controller together: places from the store, slots from the plan, threads for the queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernels.backend import Backend
from models.expert_provider import RouterWeights
from pearl_cli.predict.base import NextUse, Predictor
from pearl_cli.residency.ablations import UNCHUNKED_BYTES, CopyPieces
from pearl_cli.residency.arena import SlotArena, Slots
from pearl_cli.residency.auto.auto_forecasts import AutoForecasts
from pearl_cli.residency.auto.choices import ForecastChoices
from pearl_cli.residency.auto.plan import AutoPlan
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.eviction import EvictionPolicy
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.placement import ChunkLike, Place, place_expert
from pearl_cli.residency.prefetch import Prefetcher
from pearl_cli.residency.slot_plan import SlotPlan
from pearl_cli.residency.transfer import MERGE_BYTES, ReadFunction, ScatterFunction, TransferQueue
from pearl_cli.routing.base import RoutingPolicy


class StoreLike(Protocol):
    """What is needed of `models.expert_store.ExpertStore`."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    def moe_layers(self) -> Sequence[int]: ...
    def chunk(self, layer: int, expert: int, linear: int) -> ChunkLike: ...


@dataclass(frozen=True, slots=True)
class ExpertPlaces:
    """places[l][e]: gate, up, down (empty list for a layer without experts); slot_bytes[l]: the largest expert of the
    layer, 0 for none.
    """

    places: list[list[tuple[Place, ...]]]
    slot_bytes: list[int]

    @classmethod
    def of(cls, store: StoreLike) -> ExpertPlaces:
        places: list[list[tuple[Place, ...]]] = [[] for _ in range(store.num_layers)]
        slot_bytes = [0] * store.num_layers
        for layer in store.moe_layers():
            for expert in range(store.num_experts):
                triple, n_bytes = place_expert([store.chunk(layer, expert, linear) for linear in range(3)])
                places[layer].append(triple)
                slot_bytes[layer] = max(slot_bytes[layer], n_bytes)
        return cls(places, slot_bytes)

    @property
    def expert_bytes_total(self) -> int:
        return sum(place.n_bytes for layer in self.places for triple in layer for place in triple)

    def reload_cost(self, num_experts: int) -> np.ndarray:
        """float64 [L, E]: bytes of each expert; 1 in a layer without experts."""
        cost = np.ones((len(self.places), num_experts))
        for layer, triples in enumerate(self.places):
            cost[layer, : len(triples)] = [sum(place.n_bytes for place in triple) for triple in triples]
        return cost

    def in_file_order(self) -> list[tuple[int, int]]:
        """(layer, expert) pairs as they lie in the files, for sequential loading."""
        pairs = [(layer, expert) for layer, triples in enumerate(self.places) for expert in range(len(triples))]
        return sorted(pairs, key=self._position)

    def _position(self, pair: tuple[int, int]) -> tuple[int, int]:
        first = self.places[pair[0]][pair[1]][0]
        return first.file_index, first.file_offset


def build_controller(
    places: ExpertPlaces,
    plan: SlotPlan,
    shape: tuple[int, int],
    routers: Sequence[RouterWeights | None],
    backend: Backend,
    policy: EvictionPolicy,
    routing: RoutingPolicy,
    read: ReadFunction,
    io_threads: int = 1,
    make_slots: Callable[[Sequence[tuple[int, int]]], Slots] = SlotArena,
    predictor: Predictor | None = None,
    prefetch_depth: int = 0,
    notify: Callable[[str], None] | None = None,
    next_use: NextUse | None = None,
    pieces: CopyPieces | None = None,
    scatter: ScatterFunction | None = None,
    auto: AutoPlan | None = None,
) -> ResidencyController:
    """shape: (hidden_size, intermediate_size) of the experts; prefetch_depth: forecast experts a later layer at most;
    next_use: what `pearl` eviction goes by; make_slots: from (slot_bytes, count) of each size class; scatter: see
    `TransferQueue`; auto: what is found out while running, in place of a predictor that is fetched by from the start.
    Allocates the arena and starts the reader threads; `close` ends them.
    """
    arena = make_slots(plan.classes)
    layers = layer_states(places, plan, shape, routers, policy)
    pieces = pieces or CopyPieces()
    most_bytes = MERGE_BYTES if pieces.chunk else UNCHUNKED_BYTES
    queue = TransferQueue(read, io_threads, most_bytes, pieces.preempt, scatter if pieces.merge else None)
    prefetcher = None
    if auto is not None:
        prefetcher = Prefetcher(auto.fetcher, layers, arena, queue, auto.depth)
    elif predictor is not None:
        prefetcher = Prefetcher(predictor, layers, arena, queue, prefetch_depth, notify=notify)
    controller = ResidencyController(
        layers, routers, backend, arena, queue, routing, prefetcher, next_use, pieces.reorder
    )
    controller.route_by(routing)
    if auto is not None and prefetcher is not None:
        choices = ForecastChoices(layers, arena, prefetcher, next_use, auto.cheap, auto.slots_to_lend)
        controller.auto = AutoForecasts(choices, controller.demand, queue.stats, notify)
    return controller


def layer_states(
    places: ExpertPlaces,
    plan: SlotPlan,
    shape: tuple[int, int],
    routers: Sequence[RouterWeights | None],
    policy: EvictionPolicy,
) -> list[LayerState | None]:
    """Where nothing is resident yet; None for a layer without experts."""
    # Imported here: numba takes half a second to load, and `pearl info` reads places only.
    from pearl_cli.residency.compiled_cache import CompiledLayerCache, compile_events

    compile_events()
    layers: list[LayerState | None] = []
    for layer, triples in enumerate(places.places):
        if not triples:
            layers.append(None)
            continue
        cache = CompiledLayerCache(layer, len(triples), plan.capacities[layer], policy)
        state = LayerState(layer, triples, plan.class_of_layer[layer], cache, shape)
        router = routers[layer]
        if router is not None:
            router.complete(state.table)
        layers.append(state)
    return layers
