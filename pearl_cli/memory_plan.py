"""Where the bytes of a run go under a ceiling: pure arithmetic, no allocation, no look at the machine.

The ceiling holds the whole process: interpreter and compiled code as they stand, non-expert weights, KV cache,
workspace of the largest prompt chunk, a reserve, and the expert slots, which get what is left or what `--budget` says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from models.errors import MemoryPlanError, UsageError
from pearl_cli.residency.slot_plan import SlotPlan, floor_bytes, full_bytes, plan_slots
from pearl_cli.residency.uneven_split import Split
from pearl_cli.sizes import Size

MIB = 1 << 20
DEFAULT_CONTEXT = 4096
RESERVE_BYTES = 24 * MIB  # allocator slack, thread stacks, huge-page rounding, Python objects of a long session
FLOOR_MARGIN_BYTES = 8 * MIB  # the named floor still holds when the process weighs a little more next time
DEFAULT_SHARE = 0.85  # of available memory, when no ceiling is given


@dataclass(frozen=True, slots=True)
class FixedNeeds:
    """Bytes that a run takes before the first expert: the process as it stands, weights, KV cache of `context` tokens,
    workspace.
    """

    process_bytes: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    context: int
    peak_bytes: int = 0  # what the process has reached already
    filling_bytes: int = 0  # while a store in memory is made, before KV cache and workspace are there

    @property
    def total_bytes(self) -> int:
        running = max(self.kv_bytes + self.workspace_bytes, self.filling_bytes)
        return self.process_bytes + self.weight_bytes + running + RESERVE_BYTES


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """ceiling_bytes: of the whole process; floor_bytes: the least ceiling that works; slots: the arena;
    expert_slot_bytes_total: slots for every expert, what 100 % of a budget means; in_place: experts are computed in a
    store in memory, whose bytes are among the weights, and slots take none."""

    needs: FixedNeeds
    slots: SlotPlan
    ceiling_bytes: int
    floor_bytes: int
    expert_slot_bytes_total: int
    in_place: bool = False

    @property
    def total_bytes(self) -> int:
        return self.needs.total_bytes + self.slots.n_bytes

    @property
    def all_resident(self) -> bool:
        return self.slots.n_bytes >= self.expert_slot_bytes_total


def choose_context(asked: int | None, trained: int) -> int:
    """Context length: as asked; 0 means trained; None means min(4096, trained). Raises UsageError beyond the trained
    length.
    """
    if asked is None:
        return min(DEFAULT_CONTEXT, trained)
    if asked > trained:
        raise UsageError(f"-c {asked}: this model was trained for {trained} tokens; give at most that, or 0 for all")
    return asked or trained


def plan_memory(
    needs: FixedNeeds,
    layer_slot_bytes: Sequence[int],
    num_experts: int,
    ceiling_bytes: int,
    budget: Size | None = None,
    ceiling_is_asked: bool = True,
    prefetch_slots: int = 0,
    in_place: bool = False,
    split: Split | None = None,
    flag: str = "--ram",
) -> MemoryPlan:
    """Split `ceiling_bytes`. layer_slot_bytes: slot size each layer needs, 0 for none; `budget` limits the slots alone,
    a percentage is of the slots for all experts; `split`: over layers; `flag` names the ceiling. Raises MemoryPlanError
    with the floor in its message."""
    full = full_bytes(layer_slot_bytes, num_experts)
    slots_floor = 0 if in_place else floor_bytes(layer_slot_bytes)
    floor = max(needs.total_bytes + slots_floor, needs.peak_bytes)
    if ceiling_bytes < floor:
        raise MemoryPlanError(_below_floor(needs, slots_floor, floor, ceiling_bytes, flag if ceiling_is_asked else ""))
    if in_place:
        slots = dataclasses.replace(plan_slots(layer_slot_bytes, num_experts, full), n_bytes=0)
        return MemoryPlan(needs, slots, ceiling_bytes, floor, 0, in_place=True)
    room = ceiling_bytes - needs.total_bytes
    slot_budget = min(room, full)
    if budget is not None:
        asked = budget.of(full)
        if asked < slots_floor:
            raise MemoryPlanError(
                f"--budget {typed(asked)} is below the floor of {typed(slots_floor)} for the expert slots of this model"
                f"; give --budget {typed(slots_floor)} or more, or leave it out"
            )
        if min(asked, full) > room:
            left = f"{typed(ceiling_bytes, up=False)} in all leave {typed(room, up=False)} for experts"
            raise MemoryPlanError(
                f"--budget {typed(asked)} does not fit: {left}; give --budget {typed(room, up=False)} or more {flag}"
            )
        slot_budget = min(asked, full)
    slots = plan_slots(layer_slot_bytes, num_experts, slot_budget, prefetch_slots, split)
    return MemoryPlan(needs, slots, ceiling_bytes, floor, full)


def typed(n_bytes: int, up: bool = True) -> str:
    """Bytes as a user can type them: whole MiB, rounded up (or down), KiB below one MiB, plain bytes below one KiB."""
    if n_bytes < 1024:
        return str(n_bytes)
    unit, name = (MIB, "MiB") if n_bytes >= MIB else (1024, "KiB")
    return f"{-(-n_bytes // unit) if up else n_bytes // unit}{name}"


def _below_floor(needs: FixedNeeds, slots_floor: int, floor: int, ceiling_bytes: int, flag: str) -> str:
    workspace = needs.workspace_bytes + RESERVE_BYTES
    weights, slots = "weights", f", expert slots {typed(slots_floor)}"
    if needs.filling_bytes:
        weights = "weights and experts"
        slots = slots if slots_floor else ""
    parts = (
        f"process {typed(needs.process_bytes)}, {weights} {typed(needs.weight_bytes)}, KV cache "
        f"{typed(needs.kv_bytes)} for {needs.context} tokens, workspace {typed(workspace)}{slots}"
    )
    named = typed(floor + FLOOR_MARGIN_BYTES)
    given = typed(ceiling_bytes, up=False)
    advice = "a smaller -c or -ub lowers it"
    if needs.filling_bytes:
        advice += ", and a smaller --quant; after pearl convert it runs from the disk in far less"
    if flag:
        return f"{flag} {given} is below the floor of {named} for this model ({parts}); {advice}"
    return f"this model needs at least {named} ({parts}) and {given} may be used here; {advice}"
