"""What a benchmark says about the device beside its speeds."""

from __future__ import annotations

from typing import Any

from pearl_cli.device.copy_queue import CopyQueue
from pearl_cli.memory_plan import MemoryPlan
from pearl_cli.residency.controller import ResidencyController


def device_fields(controller: ResidencyController, device: str, plan: MemoryPlan) -> dict[str, Any]:
    """Nothing for a run on the CPU. host_expert_bytes: of slots, none where copies start from a store in RAM itself;
    host_pinned: "yes", "ring" or "no", see `HostStore`; disk_bytes: read since the start, where host memory does not
    hold all experts.
    """
    queue = controller.queue
    if not isinstance(queue, CopyQueue):
        return {}
    return {
        "device": device,
        "vram_bytes": plan.total_bytes,
        "host_expert_bytes": queue.host.n_bytes,
        "host_pinned": queue.host.store.pinned,
        "disk_bytes": queue.host.queue.stats.read_bytes,
    }
