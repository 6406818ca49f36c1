"""Eviction policies by name, one a file."""

from __future__ import annotations

import numpy as np

from models.errors import UsageError
from pearl_cli.residency.eviction.base import EvictionPolicy
from pearl_cli.residency.eviction.least_stale import LeastStale
from pearl_cli.residency.eviction.lfru import LFRU
from pearl_cli.residency.eviction.lfu import LFU
from pearl_cli.residency.eviction.lru import LRU
from pearl_cli.residency.eviction.pearl import Pearl
from pearl_cli.residency.eviction.random import Random
from pearl_cli.residency.eviction.static import Static

POLICY_NAMES = ("lru", "lfu", "lfru", "static", "random", "least-stale", "pearl")


def make_policy(
    name: str, popularity: np.ndarray | None = None, seed: int = 0, reload_cost: np.ndarray | None = None
) -> EvictionPolicy:
    """Build a policy; `popularity` [L, E] is needed by `static` only, `reload_cost` [L, E] used by `pearl`. Raises
    UsageError for an unknown name or a missing profile.
    """
    if name == "static":
        if popularity is None:
            raise UsageError(
                "--evict static needs a usage profile of this model; there is none yet: run it once with another "
                "policy, or give a recorded trace as --usage"
            )
        return Static(popularity)
    if name == "random":
        return Random(seed)
    if name == "pearl":
        return Pearl(reload_cost)
    plain: dict[str, type[LRU] | type[LFU] | type[LFRU] | type[LeastStale]] = {
        p.name: p for p in (LRU, LFU, LFRU, LeastStale)
    }
    if name not in plain:
        raise UsageError(f"--evict {name}: unknown policy; supported: {', '.join(POLICY_NAMES)}")
    return plain[name]()


__all__ = ["POLICY_NAMES", "EvictionPolicy", "make_policy"]
