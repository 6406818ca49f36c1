"""The work of one layer call: which expert groups are computed, which wait for which chunk, which may then leave.

Bookkeeping only; the controller moves bytes and calls kernels.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from kernels.backend import ExpertGroups
from models.expert_provider import Routing
from pearl_cli.residency.load import ALL_LINEARS, GATE_UP, Load


class GateCall:
    """Groups by index into `groups`: `ready` are resident and not computed; `gate_up_ready` and `down_ready` came in
    since.

    todo: experts that have no slot yet; keeps: bool [E], experts that stay resident after the call; open_groups: not
    fully computed; all_stay: nothing is missing and no expert leaves; demanded: something was missing; waited: nothing
    was left to compute before it came; forecast_s: what the forecast for eviction took.
    """

    __slots__ = (
        "all_stay", "demanded", "down_ready", "forecast_s", "gate_up_ready", "gated", "group_of", "groups", "keeps",
        "layer", "open_groups", "ready", "routing", "todo", "waited",
    )  # fmt: skip

    def __init__(self, layer: int, routing: Routing, groups: ExpertGroups, keeps: np.ndarray) -> None:
        self.layer = layer
        self.routing = routing
        self.groups = groups
        self.keeps = keeps
        self.group_of = {expert: group for group, expert in enumerate(groups.expert_ids.tolist())}
        self.ready: list[int] = []
        self.gate_up_ready: list[int] = []
        self.down_ready: list[int] = []
        self.gated: set[int] = set()
        self.todo: deque[int] = deque()
        self.open_groups = len(self.group_of)
        self.all_stay = False
        self.demanded = False
        self.waited = False
        self.forecast_s = 0.0

    def note_landed(self, load: Load) -> None:
        """Sort a demanded load by what has landed of it; called after each of its arrivals."""
        group = self.group_of[load.expert]
        if load.landed & GATE_UP == GATE_UP and group not in self.gated:
            self.gated.add(group)
            self.gate_up_ready.append(group)
        if load.landed == ALL_LINEARS:
            self.down_ready.append(group)

    def take_ready(self, limit: int) -> np.ndarray:
        """Up to `limit` resident groups, int32; they count as taken."""
        taken, self.ready = self.ready[:limit], self.ready[limit:]
        return np.array(taken, np.int32)
