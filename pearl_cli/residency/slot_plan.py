"""How a byte budget becomes slots: pure arithmetic, no memory touched.

Slots of one size form a class. A class holds the capacities of its layers plus a few *staging* slots that belong to no
layer: experts of a prompt that the layer will not keep pass through them, and forecasts land in them. The floor is 2
staging slots a class and no capacity at all: one expert is computed while the next is read, and every layer, for any
number of tokens, can be worked off that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pearl_cli.residency.uneven_split import Split, split_slots

MIN_STAGING = 2
_MAX_STAGING = 8  # more only deepens the queue of a prompt, which the disk bounds anyway
_STAGING_SHARE = 32  # one slot in so many is staging
_MAX_CLASSES = 4  # each class needs staging of its own


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """classes: (slot_bytes, count) each; class_of_layer: -1 for a layer without experts; capacities: experts a layer
    keeps; staging: slots per class beyond those; n_bytes: of the whole arena."""

    classes: tuple[tuple[int, int], ...]
    class_of_layer: tuple[int, ...]
    capacities: tuple[int, ...]
    staging: int
    n_bytes: int

    @property
    def floor_bytes(self) -> int:
        """The least that works for these classes: nothing is kept, everything is read when it is demanded."""
        return MIN_STAGING * sum(size for size, _ in self.classes)

    @property
    def num_slots(self) -> int:
        return sum(count for _, count in self.classes)


def size_classes(layer_slot_bytes: Sequence[int]) -> list[int]:
    """Slot sizes for layers that need these (0: no experts): at most four, rounding up where the least is wasted."""
    sizes = sorted({size for size in layer_slot_bytes if size})
    while len(sizes) > _MAX_CLASSES:
        waste = [
            (sizes[i + 1] - sizes[i]) * sum(1 for size in layer_slot_bytes if size == sizes[i])
            for i in range(len(sizes) - 1)
        ]
        del sizes[waste.index(min(waste))]
    return sizes


def _fitted(layer_slot_bytes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Class sizes, and each layer's slot size after rounding up to its class."""
    sizes = size_classes(layer_slot_bytes)
    return sizes, [next(size for size in sizes if size >= need) if need else 0 for need in layer_slot_bytes]


def full_bytes(layer_slot_bytes: Sequence[int], num_experts: int) -> int:
    """Slots for every expert of every layer: what 100 % of a budget means."""
    return sum(_fitted(layer_slot_bytes)[1]) * num_experts


def floor_bytes(layer_slot_bytes: Sequence[int]) -> int:
    """The least budget that works."""
    return MIN_STAGING * sum(size_classes(layer_slot_bytes))


def plan_slots(
    layer_slot_bytes: Sequence[int], num_experts: int, budget_bytes: int, prefetch_slots: int = 0,
    split: Split | None = None,
) -> SlotPlan:
    """Split the budget evenly, the remainder to the first layers; by `split` where one is given and the budget holds
    its least. layer_slot_bytes: largest expert of each layer in whole pages, 0 for none. `prefetch_slots` more staging
    slots per class are set aside where the budget allows. Raises ValueError below the floor."""
    sizes, needs = _fitted(layer_slot_bytes)
    round_bytes = sum(needs)  # one more expert in every layer
    if budget_bytes >= full_bytes(layer_slot_bytes, num_experts):
        return _finish(sizes, needs, [num_experts if need else 0 for need in needs], 0)
    if budget_bytes < MIN_STAGING * sum(sizes):
        raise ValueError(f"a budget of {budget_bytes} bytes is below the floor of {MIN_STAGING * sum(sizes)}")
    staging = min(_MAX_STAGING, max(MIN_STAGING, budget_bytes // max(sizes) // _STAGING_SHARE)) + prefetch_slots
    while staging > MIN_STAGING and staging * sum(sizes) > budget_bytes // 2:
        staging -= 1
    left = budget_bytes - staging * sum(sizes)
    each = min(num_experts, left // round_bytes)
    if split is not None and each >= split.least:
        return _finish(sizes, needs, split_slots(split, needs, left), staging)
    left -= each * round_bytes
    capacities = []
    for need in needs:
        extra = 1 if need and each < num_experts and need <= left else 0
        left -= extra * need
        capacities.append((each + extra) if need else 0)
    return _finish(sizes, needs, capacities, staging)


def _finish(sizes: list[int], needs: list[int], capacities: list[int], staging: int) -> SlotPlan:
    counts = [staging + sum(c for c, need in zip(capacities, needs, strict=True) if need == size) for size in sizes]
    classes = tuple(zip(sizes, counts, strict=True))
    return SlotPlan(
        classes=classes,
        class_of_layer=tuple(sizes.index(need) if need else -1 for need in needs),
        capacities=tuple(capacities),
        staging=staging,
        n_bytes=sum(size * count for size, count in classes),
    )
