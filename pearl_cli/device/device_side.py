"""What copies and kernels of one device share."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.gpu.device_calls import DeviceCalls
from kernels.gpu.timeline import Timeline
from pearl_cli.device.slot_marks import SlotMarks
from pearl_cli.device.slot_table import DeviceSlotTable
from pearl_cli.device.vram_arena import VramArena
from pearl_cli.residency.slot_plan import SlotPlan


@dataclass(frozen=True, slots=True)
class DeviceSide:
    """One computing and one copying stream, slots, and the table that finds experts."""

    calls: DeviceCalls
    compute: Timeline
    copies: Timeline
    arena: VramArena
    table: DeviceSlotTable
    marks: SlotMarks

    @classmethod
    def open(cls, calls: DeviceCalls, plan: SlotPlan, num_layers: int, num_experts: int) -> DeviceSide:
        """Allocates the slots. Raises DeviceMemoryError."""
        compute, copies = Timeline(calls, calls.compute), Timeline(calls, calls.new_stream())
        arena = VramArena(plan.classes, calls)
        table = DeviceSlotTable(calls, copies, num_layers, num_experts)
        return cls(calls, compute, copies, arena, table, SlotMarks(arena.num_slots, num_layers, num_experts))
