"""What this process uses and what this machine, or the container it runs in, has left. Linux's own figures; no guessing
elsewhere.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from models.errors import MemoryPlanError

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def rss_bytes() -> int:
    """Resident bytes of this process now; where /proc is missing, the peak so far."""
    fields = _status_fields("/proc/self/status")
    return fields.get("VmRSS", peak_rss_bytes())


def peak_rss_bytes() -> int:
    """The most that was ever resident in this process.

    Linux: VmHWM, because ru_maxrss of a started program begins with the peak of whoever started it.
    """
    peak = _status_fields("/proc/self/status").get("VmHWM")
    if peak is not None:
        return peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes() -> int:
    """Bytes that this process could still take: the machine's available memory, or what its cgroups leave, whichever is
    less.

    Raises MemoryPlanError where the system does not say; then a ceiling has to be given.
    """
    available = _status_fields("/proc/meminfo").get("MemAvailable")
    if available is None:
        raise MemoryPlanError("this system does not say how much memory is free; give a ceiling, e.g. --ram 6GiB")
    return max(0, min([available, *_cgroup_headrooms()]))


def _status_fields(path: str) -> dict[str, int]:
    """`Name:  123 kB` lines as bytes."""
    fields = {}
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        name, _, value = line.partition(":")
        parts = value.split()
        if len(parts) == 2 and parts[1] == "kB":
            fields[name] = int(parts[0]) * 1024
    return fields


def _cgroup_headrooms(root: Path = _CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Limit minus use of each memory cgroup around this process; page cache that can be dropped does not count as use.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    headrooms = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, limit_name, use_name = root, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit_name, use_name = root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        while folder == base or base in folder.parents:
            limit, use = _number(folder / limit_name), _number(folder / use_name)
            if limit is not None and use is not None:
                headrooms.append(limit - use + _droppable(folder / "memory.stat"))
            if folder == base:
                break
            folder = folder.parent
    return headrooms


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _droppable(path: Path) -> int:
    """inactive_file of a memory.stat."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
