"""A store in host memory as the page-locked memory that copies to a GPU start from, with no slots in between.

It is locked where it lies, after it has been filled; where that cannot be, experts pass through the slots of the plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kernels.gpu.device_calls import DeviceCalls
from models.gguf_files import MemoryFiles
from pearl_cli.device.host_slots import HostPlan
from pearl_cli.device.host_store import LOCK_SHARE, lock
from pearl_cli.memory_plan import MIB
from pearl_cli.residency.slot_plan import full_bytes, plan_slots


def lock_limit(
    store: MemoryFiles, process_bytes: int, workspace_bytes: int, available_bytes: int, ceiling_bytes: int
) -> int:
    """How large a region may be page-locked: a share of what the system has for it, and no more than the ceiling leaves
    beside the rest of the process, for locking makes pages resident that no run reads. process_bytes: with what is made
    of the store so far.
    """
    made = max(0, store.region.nbytes - store.missing_bytes(lambda name: True))
    return min(int(LOCK_SHARE * (available_bytes + made)), ceiling_bytes - workspace_bytes - (process_bytes - made))


def lock_store(
    calls: DeviceCalls,
    store: MemoryFiles | None,
    limit_bytes: int,
    passing: HostPlan,
    layer_slot_bytes: Sequence[int],
    num_experts: int,
    notify: Callable[[str], None] | None = None,
) -> HostPlan:
    """Page-lock the region of `store`, if it has no more than `limit_bytes`: the plan of a host tier that is the store
    itself and unlocks it at its end (until there is one, `unlock_store`). Otherwise `passing`, and `notify` is told
    why; as it is without a store.
    """
    if store is None:
        return passing
    why = lock(calls, store.region, limit_bytes)
    if why is not None:
        if notify is not None:
            size, through = -(-store.region.nbytes // MIB), -(-passing.n_bytes // MIB)
            notify(
                f"page-locking the {size}MiB of the model in memory {why}: experts are copied through {through}MiB of"
                " slots beside it, which is slower"
            )
        return passing
    slots = plan_slots(layer_slot_bytes, num_experts, full_bytes(layer_slot_bytes, num_experts))
    return dataclasses.replace(passing, classes=slots.classes, class_of_layer=slots.class_of_layer, store=store)


def unlock_store(calls: DeviceCalls, plan: HostPlan) -> None:
    """Undo `lock_store` where no host tier came of it."""
    if plan.store is not None:
        calls.unpin(plan.store.region)
