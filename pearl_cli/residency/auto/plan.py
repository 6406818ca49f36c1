"""What `--predictor auto` may choose from in a run, before there is a controller."""

from __future__ import annotations

from dataclasses import dataclass

from pearl_cli.predict.base import Predictor
from pearl_cli.residency.eviction import EvictionPolicy


@dataclass(frozen=True, slots=True)
class AutoPlan:
    """fetcher: what could be fetched by; depth: forecast experts a later layer at most; slots_to_lend: of each size
    class, while it fetches; cheap: the eviction policy without a forecast that could take the place of the one with
    it, None where eviction is as the user asked.
    """

    fetcher: Predictor
    depth: int
    slots_to_lend: int
    cheap: EvictionPolicy | None
