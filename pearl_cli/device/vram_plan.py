"""Where the bytes of a run on a GPU go: arithmetic under `--vram` and `--ram`, and what to do about a driver that does
not know how much is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.gpu.device_calls import DeviceCalls
from kernels.router_spec import RouterSpec
from models.config import ModelConfig
from models.errors import MemoryPlanError
from pearl_cli.device.host_slots import HostPlan
from pearl_cli.device.host_store import LOCK_SHARE
from pearl_cli.memory_plan import FLOOR_MARGIN_BYTES, MIB, FixedNeeds, MemoryPlan, plan_memory, typed
from pearl_cli.residency.slot_plan import floor_bytes, full_bytes, plan_slots
from pearl_cli.residency.uneven_split import Split
from pearl_cli.sizes import Size

CONTEXT_BYTES = 640 * MIB  # what a driver takes for a process: its context, compiled kernels, the libraries' workspaces
FREE_SHARE = 0.92  # of the memory that is free, when no ceiling is given: a desktop draws windows too
HOST_WORKSPACE_BYTES = 64 * MIB  # pinned buffers, logits, routing of a prompt chunk
_UNKNOWN_SHARE = 0.75  # of the whole device, when the driver does not say what is free


@dataclass(frozen=True, slots=True)
class VramNeeds:
    """Bytes on the device beside the slots: `context` tokens of KV cache, workspace of the largest prompt chunk."""

    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    context: int

    @property
    def fixed(self) -> FixedNeeds:
        return FixedNeeds(CONTEXT_BYTES, self.weight_bytes, self.kv_bytes, self.workspace_bytes, self.context)


def device_workspace_bytes(config: ModelConfig, chunk_tokens: int) -> int:
    """Upper estimate of what computing `chunk_tokens` at once takes on the device: activations and their quantised
    forms, expert pair buffers, logits. Wider than `pearl_cli.workspace` has it for the CPU, where runs were measured.
    """
    router: RouterSpec = config.router
    attention_width = config.num_heads * config.head_dim + config.num_kv_heads * (config.head_dim + config.value_dim)
    mixer_width, net = 3 * attention_width, config.delta_net
    if net is not None:  # a gate beside attention's rows, or what the delta net's ops hand on
        gated = mixer_width + 2 * config.num_heads * config.head_dim
        mixer_width = max(gated, 2 * net.conv_width + 4 * net.value_width)
    if config.mamba is not None:  # or what Mamba-2's ops hand on
        own = config.mamba
        mixer_width = max(mixer_width, own.projected_width + own.conv_width + 2 * own.inner_width)
    row = 4 * (8 * config.hidden_size + mixer_width + 2 * router.num_experts + 3 * config.intermediate_size)
    pair = 6 * config.moe_intermediate_size + 4 * config.hidden_size
    per_token = row + router.num_experts_per_tok * pair
    return chunk_tokens * per_token * 5 // 4 + 4 * 4 * config.vocab_size + 8 * MIB


def plan_vram(
    calls: DeviceCalls,
    needs: VramNeeds,
    layer_slot_bytes: Sequence[int],
    num_experts: int,
    asked: Size | None = None,
    budget: Size | None = None,
    prefetch_slots: int = 0,
    split: Split | None = None,
    notify: Callable[[str], None] | None = None,
) -> MemoryPlan:
    """Split `asked` (of the whole process; None: what is free) on the device. Raises MemoryPlanError with the floor."""
    ceiling = asked.n_bytes if asked is not None else _free_ceiling(calls, needs, layer_slot_bytes, notify)
    return plan_memory(
        needs.fixed, layer_slot_bytes, num_experts, ceiling, budget, ceiling_is_asked=asked is not None,
        prefetch_slots=prefetch_slots, split=split, flag="--vram",
    )


def smaller(
    plan: MemoryPlan, layer_slot_bytes: Sequence[int], num_experts: int, prefetch_slots: int, split: Split | None = None
) -> MemoryPlan:
    """The plan with about a tenth fewer bytes for slots, when the device refused those of `plan`. Raises
    MemoryPlanError at the floor.
    """
    floor = floor_bytes(layer_slot_bytes)
    if plan.slots.n_bytes <= floor:
        raise MemoryPlanError(
            f"the GPU has no room for the {typed(floor)} of expert slots that this model needs at least beside weights"
            f" and KV cache; close other programs, or give a smaller -c or -ub, or --device cpu"
        )
    budget = max(floor, plan.slots.n_bytes * 9 // 10)
    slots = plan_slots(layer_slot_bytes, num_experts, budget, prefetch_slots, split)
    return MemoryPlan(
        plan.needs, slots, plan.needs.total_bytes + budget, plan.floor_bytes, plan.expert_slot_bytes_total
    )


def plan_host(
    layer_slot_bytes: Sequence[int],
    num_experts: int,
    process_bytes: int,
    loading_bytes: int,
    available_bytes: int,
    ceiling_bytes: int,
    ceiling_is_asked: bool,
    most_bytes: int | None = None,
) -> HostPlan:
    """Slots in host memory under the ceiling of the whole process. loading_bytes: taken while weights are on their way
    to the device, and given back before the slots are filled; most_bytes: more would not be used. Raises
    MemoryPlanError with the floor.
    """
    needs = FixedNeeds(process_bytes, 0, 0, HOST_WORKSPACE_BYTES, 0, filling_bytes=0)
    floor = needs.total_bytes + max(floor_bytes(layer_slot_bytes), loading_bytes)
    if ceiling_bytes < floor:
        given, least = typed(ceiling_bytes, up=False), typed(floor + FLOOR_MARGIN_BYTES)
        told, advice = f"--ram {given}", f"give --ram {least} or more"
        if not ceiling_is_asked:
            told = f"the {given} of RAM to be had"
            advice = f"close other programs, or give --ram {least} if it is there"
        raise MemoryPlanError(
            f"{told} is below the floor of {least} on a GPU (process {typed(process_bytes)}, weights on their way"
            f" {typed(loading_bytes)}, expert slots {typed(floor_bytes(layer_slot_bytes))}); {advice}; a file converted"
            " to a smaller type needs less"
        )
    budget = min(ceiling_bytes - needs.total_bytes, full_bytes(layer_slot_bytes, num_experts))
    if most_bytes is not None:
        budget = max(min(budget, most_bytes), floor_bytes(layer_slot_bytes))
    slots = plan_slots(layer_slot_bytes, num_experts, budget)
    return HostPlan(slots.classes, slots.class_of_layer, int(LOCK_SHARE * available_bytes))


def _free_ceiling(
    calls: DeviceCalls, needs: VramNeeds, layer_slot_bytes: Sequence[int], notify: Callable[[str], None] | None
) -> int:
    """What may be taken when nobody said: a share of what is free, but no less than the floor, which is tried even if
    the driver says that it is not there.
    """
    floor = needs.fixed.total_bytes + floor_bytes(layer_slot_bytes)
    try:
        free, total = calls.memory_info()
    except RuntimeError as error:
        if notify is not None:
            notify(f"the driver does not say how much GPU memory is free ({error}); trying the least that works;"
                   " --vram SIZE gives more")  # fmt: skip
        return floor
    if free > total > 0:
        free = int(_UNKNOWN_SHARE * total)
    ceiling = CONTEXT_BYTES + int(FREE_SHARE * free)  # the context exists already and is not among the free bytes
    if ceiling < floor and notify is not None:
        notify(f"the driver says {typed(free, up=False)} of GPU memory are free and {typed(floor)} are needed: trying")
    return max(ceiling, floor)
