"""One decode step under torch's profiler: which kernels ran how long, and a trace to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pearl_cli.opened_engine import OpenedEngine

_MOST_NAMED = 12


def profile_step(opened: OpenedEngine, trace: Path) -> dict[str, Any]:
    """Writes a Chrome trace; returns the step's figures in microseconds. Without a GPU only the host is seen."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, acc_events=True) as profiler:
        opened.engine.decode_step(1)
    profiler.export_chrome_trace(str(trace))
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    on_device = [row for row in rows if row.self_device_time_total > 0]
    copies = [row for row in on_device if "memcpy" in row.key.lower()]
    return {
        "device_us": sum(row.self_device_time_total for row in on_device),
        "copy_us": sum(row.self_device_time_total for row in copies),
        "launches": sum(row.count for row in on_device),
        "slowest": [
            {"name": row.key[:80], "count": row.count, "us": row.self_device_time_total}
            for row in on_device[:_MOST_NAMED]
        ],
    }
