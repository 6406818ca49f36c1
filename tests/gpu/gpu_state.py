"""What the device is doing while it is measured: clocks, what holds them back, and how fast bytes move."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import torch

_ASKED = (
    "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw",
    "pcie.link.gen.current", "pcie.link.width.current", "clocks_throttle_reasons.active",
)  # fmt: skip
_HELD_BACK = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}


def state() -> dict[str, str]:
    """By nvidia-smi, of the first device; empty where there is none to ask."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in done.stdout.split(",")]
    return dict(zip(_ASKED, values, strict=True)) if not done.returncode and len(values) == len(_ASKED) else {}


def held_back(states: list[dict[str, str]]) -> list[str]:
    """What held the clocks back at any of these moments: then the speeds are not the device's best."""
    bits = 0
    for found in states:
        reasons = found.get("clocks_throttle_reasons.active", "")
        bits |= int(reasons, 16) if reasons.startswith("0x") else 0
    return [name for bit, name in _HELD_BACK.items() if bits & bit]


def bandwidths() -> dict[str, float]:
    """GB/s of copies within the device's memory (read and written) and from page-locked host memory; empty without a
    CUDA device.
    """
    if not torch.cuda.is_available():
        return {}
    here, there = (torch.empty(1 << 29, dtype=torch.uint8, device="cuda") for _ in range(2))
    host = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    return {
        "device_gb_s": 2 * here.numel() / _seconds(lambda: there.copy_(here)) / 1e9,
        "link_gb_s": host.numel() / _seconds(lambda: here[: host.numel()].copy_(host, non_blocking=True)) / 1e9,
    }


def _seconds(work: Callable[[], Any]) -> float:
    """The fastest of a few."""
    best = float("inf")
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best
