"""What must be over before a slot of the device may be read, and before it may be overwritten."""

from __future__ import annotations

import numpy as np


class SlotMarks:
    """int64 marks of two `kernels.gpu.timeline.Timeline`s.

    copied [num_slots]: of the copying stream, after the slot's bytes and its entry in the slot table; used [num_slots]
    and entry_used [num_layers, num_experts]: of the computing stream, after the last kernel that read the slot, or the
    entry of the slot table.
    """

    __slots__ = ("copied", "entry_used", "used")

    def __init__(self, num_slots: int, num_layers: int, num_experts: int) -> None:
        self.copied = np.zeros(num_slots, np.int64)
        self.used = np.zeros(num_slots, np.int64)
        self.entry_used = np.zeros((num_layers, num_experts), np.int64)

    def note_use(self, layer: int, expert_ids: np.ndarray, slots: np.ndarray, mark: int) -> None:
        """Kernels up to `mark` of the computing stream read these experts of `layer` in these slots."""
        self.used[slots] = mark
        self.entry_used[layer, expert_ids] = mark

    def last_use(self, layer: int, expert: int, slot: int) -> int:
        """What a copy of the expert into `slot` comes after."""
        return int(max(self.used[slot], self.entry_used[layer, expert]))
