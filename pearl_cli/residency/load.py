"""One expert on its way into a slot, and the word that some of it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pearl_cli.residency.placement import Place

LINEAR_BITS = (0b001, 0b010, 0b100)
ALL_LINEARS = 0b111
GATE_UP = 0b011


class Load:
    """One expert on its way into `slot`. Bit i of each mask stands for linear i (gate, up, down).

    waiting: chunks no reader has begun; outstanding: reads begun whose arrival nobody has taken. Both change under the
    queue's lock. landed: arrivals taken so far, kept by the controller.
    """

    __slots__ = (
        "demanded", "dropped", "early_bytes", "expert", "landed", "layer", "outstanding", "places", "queued_at", "slot",
        "view", "waiting",
    )  # fmt: skip

    def __init__(
        self, layer: int, expert: int, slot: int, view: memoryview, places: Sequence[Place], demanded: bool
    ) -> None:
        self.layer = layer
        self.expert = expert
        self.slot = slot
        self.view = view
        self.places = places
        self.demanded = demanded
        self.waiting = ALL_LINEARS
        self.outstanding = 0
        self.landed = 0
        self.dropped = False
        self.early_bytes = 0  # of chunks that a reader began before anyone demanded them
        self.queued_at = 0.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """Linears `mask` of `load` have landed, or `error` says why they have not."""

    load: Load
    mask: int
    error: Exception | None = None
