"""What `--predictor auto` can put in force and take back: fetching ahead, and the forecast that evicts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pearl_cli.predict.base import NextUse
from pearl_cli.residency.arena import Slots
from pearl_cli.residency.auto.lent_slots import LentSlots, share_of_layers
from pearl_cli.residency.eviction import EvictionPolicy
from pearl_cli.residency.layer_state import LayerState
from pearl_cli.residency.prefetch import Prefetcher


class ForecastChoices:
    """next_use: what evicts now, None where that is the cheap policy or none looks ahead. expected: of each layer's
    newest event, what it evicts by. Everything is changed between two forward calls.
    """

    def __init__(
        self,
        layers: Sequence[LayerState | None],
        arena: Slots,
        prefetcher: Prefetcher,
        next_use: NextUse | None,
        cheap: EvictionPolicy | None,
        slots_to_lend: int,
    ) -> None:
        """cheap: the policy that needs no forecast, None where eviction is as the user asked; slots_to_lend: of each
        size class. The prefetcher is switched off.
        """
        self.next_use = next_use
        self.expected: dict[int, np.ndarray] = {}
        self.prefetcher = prefetcher
        self.cheap = cheap if next_use is not None else None
        self.shares = share_of_layers(layers, slots_to_lend)
        self._forecaster = next_use
        self._layers = [state for state in layers if state is not None]
        self._asked = self._layers[0].own_cache.policy
        self._lent = LentSlots(layers, arena)
        prefetcher.fetching = False

    @property
    def fetcher(self) -> str:
        return self.prefetcher.name

    @property
    def forecaster(self) -> str | None:
        """What may evict, where that is in question."""
        return self._forecaster.name if self._forecaster is not None and self.cheap is not None else None

    @property
    def policy(self) -> str:
        return self._layers[0].own_cache.policy.name

    @property
    def fetching(self) -> bool:
        return self.prefetcher.fetching

    def fetch(self, wanted: bool) -> None:
        """Layers lend slots to forecasts, or have them back."""
        self.prefetcher.fetching = wanted
        if wanted and not self._lent.any:
            self.prefetcher.governor.restart()
            self._lent.lend(self.shares, self.expected)
        elif not wanted:
            self._lent.give_back()

    def hold_fetching(self, held: bool) -> None:
        """Lent slots stay lent, and nothing is asked for."""
        self.prefetcher.fetching = not held

    def evict_by_forecast(self, wanted: bool) -> None:
        """By the forecast, which then begins without memory of what it did not see, or by the cheap policy."""
        if self._forecaster is None or self.cheap is None or wanted == (self.next_use is not None):
            return
        self.next_use = self._forecaster.fresh() if wanted else None
        self.expected.clear()
        for state in self._layers:
            state.own_cache.policy = self._asked if wanted else self.cheap
