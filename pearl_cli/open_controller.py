"""The residency controller of a run, where it computes: beside the CPU's kernels, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kernels.cpu.memory import allocate
from models.expert_provider import RouterWeights
from models.gguf import GGUFModel
from pearl_cli.device.open_device import open_on_device
from pearl_cli.groundwork import Groundwork
from pearl_cli.memory_plan import MemoryPlan
from pearl_cli.options import RunOptions
from pearl_cli.residency.ablations import CopyPieces
from pearl_cli.residency.arena import SlotArena, Slots
from pearl_cli.residency.build import build_controller
from pearl_cli.residency.controller import ResidencyController
from pearl_cli.residency.in_place import InPlaceSlots
from pearl_cli.residency.open_reader import ChunkReader
from pearl_cli.run_policies import RunPolicies

DEFAULT_IO_THREADS = 2


def open_controller(
    ground: Groundwork,
    gguf: GGUFModel,
    options: RunOptions,
    routers: Sequence[RouterWeights | None],
    policies: RunPolicies,
    reader: ChunkReader,
    notify: Callable[[str], None] | None,
) -> tuple[ResidencyController, MemoryPlan]:
    """The controller, and the plan as it came out. Call it when weights and KV cache are there. Raises MemoryPlanError.
    """
    config, places, plan, depth = ground.config, ground.places, ground.plan, ground.fetch_depth
    io_threads = options.io_threads or DEFAULT_IO_THREADS
    if ground.on_device is not None:
        return open_on_device(
            options, ground.on_device, config, places, routers, policies.eviction, policies.routing, reader.read,
            io_threads, policies.predictor, depth, policies.next_use, notify,
        )  # fmt: skip
    controller = build_controller(
        places, plan.slots, (config.hidden_size, config.moe_intermediate_size), routers, ground.backend,
        policies.eviction, policies.routing, reader.read, io_threads, _slots_for(gguf, plan), policies.predictor, depth,
        notify, policies.next_use, CopyPieces.without(options.switched_off), reader.read_scattered, policies.auto,
    )  # fmt: skip
    return controller, plan


def _slots_for(gguf: GGUFModel, plan: MemoryPlan) -> Callable[[Sequence[tuple[int, int]]], Slots]:
    """How slots are made: none but the store itself where experts are computed in it."""
    if plan.in_place and gguf.memory is not None:
        return partial(InPlaceSlots, address_of=gguf.memory.address)
    return partial(SlotArena, allocate=allocate)
